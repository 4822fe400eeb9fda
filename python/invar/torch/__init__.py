"""invar.torch: the law's ops in PyTorch, and transformers models with the engine's bits (docs/PYTHON.md)."""

from ._distributed import ReduceScatter as ReduceScatter, ddp_hook as ddp_hook, prepare as prepare
from ._optimizer import AdamW as AdamW, weights_hash as weights_hash
from ._patch import logprobs as logprobs, patch as patch
from ._step import Pass as Pass, Step as Step
from . import _ops as _ops  # registers torch.ops.invar.*
