"""Options of an engine, by vLLM's names where vLLM has them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from . import _check
from ._errors import InvarError, Status, UnknownOption
from ._library import CUDA, Handle, c_string, check, ffi, lib, new_error, path_bytes
from ._model import find_model, path_text
from .params import _refuse

_DTYPES = {"half": "float16", "float": "float32"}
_LACKING: dict[str, tuple[Any, ...]] = {
    "tokenizer": (None,),
    "tokenizer_mode": ("auto",),
    "quantization": (None,),
    "revision": (None,),
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
    "fully_sharded_loras": (False,),
    "lora_dtype": ("auto",),
    "kv_cache_dtype": ("auto",),
    "cpu_offload_gb": (0, 0.0),
    "hf_overrides": (None,),
    "enable_chunked_prefill": (None, True),
}


_FLAGS = (
    "enable_prefix_caching", "enforce_eager", "trust_remote_code", "disable_log_stats", "trainable", "enable_lora", "enable_expert_parallel",
)  # fmt: skip
_SIZES = {"tensor_parallel_size": 1, "threads": 0, "dummy_seed": 0, "max_loras": 1, "max_lora_rank": 1}  # field: smallest
_OPTIONAL_SIZES = {
    "max_model_len": 1, "max_num_seqs": 1, "max_num_batched_tokens": 1, "kv_cache_memory_bytes": 1, "rank_timeout_ms": 1,
    "step_target_ms": 0, "state_cache_memory_bytes": 1, "max_cpu_loras": 1,
}  # fmt: skip
_TEXTS = ("load_format", "device", "arithmetic", "numerics", "isa", "weights")


@dataclass(kw_only=True)
class EngineArgs:
    model: str | os.PathLike[str]
    dtype: str = "auto"
    tensor_parallel_size: int = 1
    enable_expert_parallel: bool = False  # whole experts on a rank, as always; refused without experts
    max_model_len: int | None = None
    enable_prefix_caching: bool = True
    gpu_memory_utilization: float | None = None  # on GPUs: the share of the memory free after loading for the KV cache
    seed: int | None = None
    load_format: str = "auto"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enforce_eager: bool = False
    speculative_config: dict[str, Any] | None = None  # {"method": "ngram", "num_speculative_tokens": 4}
    kv_cache_memory_bytes: int | None = None
    trust_remote_code: bool = False  # no code of a model is ever run
    disable_log_stats: bool = True  # nothing is logged
    enable_lora: bool = False
    max_loras: int = 1  # adapters at once: the larger of this and ...
    max_cpu_loras: int | None = None  # ... of this; the least recently used one goes
    max_lora_rank: int = 64  # of any module
    # vLLM's that the engine lacks: other values are refused by name.
    tokenizer: str | None = None
    tokenizer_mode: str = "auto"
    quantization: str | None = None
    revision: str | None = None
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    fully_sharded_loras: bool = False
    lora_dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    cpu_offload_gb: float = 0
    hf_overrides: Any = None
    enable_chunked_prefill: bool | None = None
    # invar's own. None of them but arithmetic, numerics and sample_all_ids changes a bit.
    device: str = "auto"
    arithmetic: str = "auto"
    numerics: str = "invar"
    isa: str = "auto"
    weights: str = "auto"  # packed (quantized weights stay as in the file) or expanded (in 16 bits)
    threads: int = 0
    trainable: bool = False  # Trainer.sync will replace the weights
    dummy_seed: int = 0
    sample_all_ids: bool = False  # also draw ids without a token, as of a padded vocabulary
    rank_timeout_ms: int | None = None
    state_cache_memory_bytes: int | None = None  # for states of linear attention, which cached prefixes need
    step_target_ms: int | None = 0  # of a step that reads prompts next to running requests; 0: no target; None: 50 on GPUs

    def __post_init__(self) -> None:
        self._check()

    def _check(self) -> None:
        """Fields as plain Python values. InvarError names one that is wrong."""
        model = path_text(self.model, "model")
        if self.tokenizer is not None and path_text(self.tokenizer, "tokenizer") == model:
            self.tokenizer = None
        _refuse(self, _LACKING)
        for name in _FLAGS:
            setattr(self, name, _check.flag(getattr(self, name), name))
        for name, low in _SIZES.items():
            setattr(self, name, _check.integer(getattr(self, name), name, low, _check.SIZE_MAX))
        for name, low in _OPTIONAL_SIZES.items():
            setattr(self, name, _check.optional(_check.integer, getattr(self, name), name, low, _check.SIZE_MAX))
        for name in _TEXTS:
            setattr(self, name, _check.text(getattr(self, name), name))
        self.dtype = _check.text(str(self.dtype).removeprefix("torch."), "dtype")
        self.seed = _check.seed(self.seed, "seed")
        share = _check.optional(_check.number, self.gpu_memory_utilization, "gpu_memory_utilization")
        if share is not None and not 0 < share <= 1:
            raise InvarError(Status.INVALID, f"gpu_memory_utilization: wanted above 0, at most 1, found {share}")
        self.gpu_memory_utilization = share
        if self.speculative_config is not None and not isinstance(self.speculative_config, Mapping):
            _check.wrong("speculative_config", 'a dict as {"method": "ngram"}', self.speculative_config)

    @property
    def lora_room(self) -> int:
        """Adapters that may be loaded at once."""
        return max(self.max_loras, self.max_cpu_loras or 0) if self.enable_lora else 0

    @property
    def _on_gpu(self) -> bool:
        return self.device == "cuda" or (self.device == "auto" and CUDA and os.path.exists("/dev/nvidiactl"))

    def open(self) -> Handle:
        """An open engine. Fields are checked again: they may have been assigned since."""
        self._check()
        keep: list[Any] = []

        def text(value: str, what: str) -> Any:
            keep.append(c_string(value, what))
            return keep[-1]

        o, out, err = ffi.new("iv_engine_options *"), ffi.new("iv_engine **"), new_error()
        lib().iv_engine_options_init_sized(o, ffi.sizeof("iv_engine_options"))
        self.model = find_model(self.model)
        keep.append(ffi.new("char[]", path_bytes(self.model)))
        o.model = keep[-1]
        o.dtype = text(_DTYPES.get(self.dtype, self.dtype), "dtype")
        for name in _TEXTS:
            setattr(o, name, text(getattr(self, name), name))
        if self.load_format == "safetensors":
            o.load_format = text("auto", "load_format")
        o.tensor_parallel_size = self.tensor_parallel_size
        o.expert_parallel_size = ffi.cast("size_t", -1) if self.enable_expert_parallel else 0
        o.max_model_len = self.max_model_len or 0
        o.max_num_seqs = self.max_num_seqs or 0
        o.max_num_batched_tokens = self.max_num_batched_tokens or 0
        o.enforce_eager, o.prefix_caching = self.enforce_eager, self.enable_prefix_caching
        o.threads, o.trainable, o.dummy_seed = self.threads, self.trainable, self.dummy_seed
        o.kv_bytes = self.kv_cache_memory_bytes or 0
        o.state_cache_bytes = self.state_cache_memory_bytes or 0
        o.single_process = True
        o.max_loras, o.max_lora_rank = self.lora_room, self.max_lora_rank
        o.sample_all_ids = self.sample_all_ids
        o.step_target_ms = ffi.cast("size_t", -1) if self.step_target_ms is None else self.step_target_ms
        if self.rank_timeout_ms is not None:
            o.rank_timeout_ms = self.rank_timeout_ms
        if self.gpu_memory_utilization is not None and self._on_gpu:
            o.kv_fraction = self.gpu_memory_utilization
        if self.speculative_config is not None:
            self._speculate(o, text)
        check(lib().iv_engine_open(o, out, err), err)
        return Handle(out[0], lib().iv_engine_close, "engine")

    def _speculate(self, o: Any, text: Any) -> None:
        given = dict(self.speculative_config or {})
        o.speculative = text(given.pop("method", "ngram"), "speculative_config.method")
        count = given.pop("num_speculative_tokens", o.speculative_tokens)
        o.speculative_tokens = _check.integer(count, "speculative_config.num_speculative_tokens", 1, _check.SIZE_MAX)
        if given:
            names = ", ".join(given)
            raise InvarError(Status.UNSUPPORTED, f"speculative_config: wanted method, num_speculative_tokens, found {names}")


def engine_args(model: Any, options: dict[str, Any]) -> EngineArgs:
    """UnknownOption names an option that does not exist."""
    known = {f.name for f in fields(EngineArgs)}
    for name in options:
        if name not in known:
            raise UnknownOption(name, known, "engine option")
    return EngineArgs(model=model, **options)
