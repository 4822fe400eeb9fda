#!/usr/bin/env python3
"""write_ffi.py HEADER... OUT CUDA: cffi's declarations of the headers as a Python module (ABI mode), and whether the
library has the CUDA backend (True or False). The build of the wheel calls it."""
import pathlib
import re
import sys
import tempfile

import cffi


def declarations(header: str) -> str:
    """The header without what cffi's parser does not take: comments, directives, inline functions, extern "C"."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    text = re.sub(r"^#.*\n", "", text, flags=re.M)
    text = re.sub(r"^static inline [^{]*\{.*?\}\n", "", text, flags=re.M | re.S)
    text = re.sub(r'^extern "C" \{\n|^\}\n', "", text, flags=re.M)
    return text.replace("IV_API ", "")


def main() -> None:
    *headers, out, cuda = sys.argv[1:]
    ffi = cffi.FFI()
    for header in headers:
        ffi.cdef(declarations(pathlib.Path(header).read_text()))
    ffi.set_source("_ffi", None)
    with tempfile.TemporaryDirectory() as folder:
        ffi.emit_python_code(f"{folder}/_ffi.py")
        text = pathlib.Path(f"{folder}/_ffi.py").read_text()
    pathlib.Path(out).write_text(f"{text}CUDA = {cuda == 'True'}\n")


if __name__ == "__main__":
    main()
