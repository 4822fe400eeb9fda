# The build writes _ffi.py from include/invar.h (python/write_ffi.py).
from typing import Any

ffi: Any
CUDA: bool
