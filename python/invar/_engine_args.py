"""Options of an engine, by vLLM's names where vLLM has them."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

from ._errors import InvarError, Status
from ._library import CUDA, Handle, check, encode, ffi, lib, new_error, path_bytes
from .params import _refuse

_DTYPES = {"half": "float16", "float": "float32"}
_LACKING: dict[str, tuple[Any, ...]] = {
    "tokenizer": (None,),
    "tokenizer_mode": ("auto",),
    "quantization": (None,),
    "revision": (None,),
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
    "enable_lora": (False,),
    "kv_cache_dtype": ("auto",),
    "cpu_offload_gb": (0, 0.0),
    "hf_overrides": (None,),
    "enable_chunked_prefill": (None, True),
}


@dataclass(kw_only=True)
class EngineArgs:
    model: str | os.PathLike[str]
    dtype: str = "auto"
    tensor_parallel_size: int = 1
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
    # vLLM's that the engine lacks: other values are refused by name.
    tokenizer: str | None = None
    tokenizer_mode: str = "auto"
    quantization: str | None = None
    revision: str | None = None
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_lora: bool = False
    kv_cache_dtype: str = "auto"
    cpu_offload_gb: float = 0
    hf_overrides: Any = None
    enable_chunked_prefill: bool | None = None
    # invar's own. None of them but arithmetic, numerics and sample_all_ids changes a bit.
    device: str = "auto"
    arithmetic: str = "auto"
    numerics: str = "invar"
    isa: str = "auto"
    threads: int = 0
    trainable: bool = False  # Trainer.sync will replace the weights
    dummy_seed: int = 0
    sample_all_ids: bool = False  # also draw ids without a token, as of a padded vocabulary
    rank_timeout_ms: int | None = None
    step_target_ms: int | None = 0  # of a step that reads prompts next to running requests; 0: no target; None: 50 on GPUs

    def __post_init__(self) -> None:
        if self.tokenizer is not None and os.fspath(self.tokenizer) == os.fspath(self.model):
            self.tokenizer = None
        _refuse(self, _LACKING)
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise InvarError(Status.INVALID, f"gpu_memory_utilization: wanted above 0, at most 1, found {share}")
        for name in ("tensor_parallel_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvarError(Status.INVALID, f"{name}: wanted 1 or more, found {value}")

    @property
    def _on_gpu(self) -> bool:
        return self.device == "cuda" or (self.device == "auto" and CUDA and os.path.exists("/dev/nvidiactl"))

    def open(self) -> Handle:
        """An open engine."""
        keep: list[Any] = []

        def text(value: str, what: str) -> Any:
            keep.append(ffi.new("char[]", encode(value, what)))
            return keep[-1]

        o, out, err = ffi.new("iv_engine_options *"), ffi.new("iv_engine **"), new_error()
        lib().iv_engine_options_init_sized(o, ffi.sizeof("iv_engine_options"))
        keep.append(ffi.new("char[]", path_bytes(self.model)))
        o.model = keep[-1]
        dtype = str(self.dtype).removeprefix("torch.")
        o.dtype = text(_DTYPES.get(dtype, dtype), "dtype")
        for name in ("load_format", "device", "arithmetic", "numerics", "isa"):
            setattr(o, name, text(str(getattr(self, name)), name))
        if self.load_format == "safetensors":
            o.load_format = text("auto", "load_format")
        o.tensor_parallel_size = self.tensor_parallel_size
        o.max_model_len = self.max_model_len or 0
        o.max_num_seqs = self.max_num_seqs or 0
        o.max_num_batched_tokens = self.max_num_batched_tokens or 0
        o.enforce_eager, o.prefix_caching = self.enforce_eager, self.enable_prefix_caching
        o.threads, o.trainable, o.dummy_seed = self.threads, self.trainable, self.dummy_seed
        o.kv_bytes = self.kv_cache_memory_bytes or 0
        o.single_process = True
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
        o.speculative = text(str(given.pop("method", "ngram")), "speculative_config.method")
        o.speculative_tokens = given.pop("num_speculative_tokens", o.speculative_tokens)
        if given:
            names = ", ".join(given)
            raise InvarError(Status.UNSUPPORTED, f"speculative_config: wanted method, num_speculative_tokens, found {names}")


def engine_args(model: Any, options: dict[str, Any]) -> EngineArgs:
    """TypeError names an unknown option."""
    known = {f.name for f in fields(EngineArgs)}
    for name in options:
        if name not in known:
            raise TypeError(f"unknown engine option {name!r}")
    return EngineArgs(model=model, **options)
