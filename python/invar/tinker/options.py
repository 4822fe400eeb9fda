"""What a server is started with. Defaults, limits and their help are here alone; __main__ makes flags of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import Any

LOSSES_OF_STABLE = ("importance_sampling", "ppo", "cispo")


def flag(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True, kw_only=True)
class Options:
    model: str
    host: str = flag("127.0.0.1", "address to listen on")
    port: int = flag(8000, "0: a free one", low=0, high=65535)
    served_model_name: str | None = flag(None, "the name that clients give as base_model; MODEL otherwise")
    state: str | None = flag(None, "directory of runs, checkpoints and sampler weights, which survive a restart; without it they go at the end")
    api_key: tuple[str, ...] = flag((), "a key that clients may use, as often as wanted; begins with tml-. Without it any key is taken", repeat=True)
    # How models learn.
    lora_alpha: float = flag(32.0, "factor of adapters, divided by their rank", low=0)
    virtual_ranks: int = flag(8, "chains of sums over tokens, which decide bits", low=1, high=64)
    stable_reinforce: str | None = flag(None, "the loss that stands for the client's stable_reinforce, whose formula is not public",
                                        choices=LOSSES_OF_STABLE)
    # How they sample.
    seed: int | None = flag(None, "makes the seeds of requests that have none; without it they are drawn")
    # Where; none of these changes a bit.
    device: str = flag("auto", "auto, cpu, cuda")
    dtype: str = flag("auto", "auto, bfloat16, float16, float32: of the matrices; decides bits")
    arithmetic: str = flag("auto", "auto, fma32, tc16; decides bits")
    threads: int = flag(0, "of the engine, and of each model that learns; 0: one for each CPU", low=0)
    tensor_parallel_size: int = flag(1, "ranks that share each matrix", low=1)
    recompute: str = flag("none", "what the backward pass computes again: none, attention, layer")
    gpu_memory_utilization: float | None = flag(None, "share of a GPU's memory for the cache of keys and values", low=0)
    kv_cache_memory_bytes: int | None = flag(None, "bytes of the cache of keys and values", low=1)
    # Limits.
    max_context: int | None = flag(None, "tokens of a prompt with its answer, and of a sequence that is learned; otherwise as many as the model and the learner's memory take", low=2)
    max_models: int = flag(8, "models that learn at once; those of sessions that ended make room", low=1)
    max_lora_rank: int = flag(64, "largest rank", low=1, high=4096)
    max_loras: int = flag(16, "adapters in the engine at once; others wait on disk. 0: none learn either", low=0)
    keep_ephemeral: int = flag(8, "sampler weights without a name that are kept of each model, the newest", low=1)
    max_samples: int = flag(1024, "answers of one request", low=1)
    max_data: int = flag(16384, "sequences of one forward or backward", low=1)
    max_target_columns: int = flag(32, "targets of one position", low=1)
    max_request_bytes: int = flag(256 << 20, "of a request's body, before and after decompression", low=1024)
    max_requests: int = flag(8192, "requests in flight; more are told to come again", low=1)
    session_timeout: float = flag(3600.0, "seconds without a sign of life after which a session's models leave memory", low=1)
    log_level: str = flag("info", "debug, info, warning, error", choices=("debug", "info", "warning", "error"))

    @property
    def name(self) -> str:
        return self.served_model_name or os.fspath(self.model)


def flags() -> list[tuple[str, Any, dict[str, Any]]]:
    """Name, default and metadata of each."""
    return [(f.name, f.default, dict(f.metadata)) for f in fields(Options) if f.metadata]
