"""invar: an LLM engine and trainer whose answers never change by a bit.

Names load when they are first used, the library and numpy with the first model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._errors import InvarError as InvarError, Status as Status
    from .async_llm import AsyncEngineArgs as AsyncEngineArgs, AsyncLLM as AsyncLLM, AsyncLLMEngine as AsyncLLMEngine
    from .audit import audit as audit
    from .llm import LLM as LLM, EngineInfo as EngineInfo
    from .lora.request import LoRARequest as LoRARequest
    from .outputs import (
        CompletionOutput as CompletionOutput,
        Logprob as Logprob,
        RequestOutput as RequestOutput,
        ScoreOutput as ScoreOutput,
    )
    from .params import (
        GuidedDecodingParams as GuidedDecodingParams,
        RequestOutputKind as RequestOutputKind,
        SamplingParams as SamplingParams,
        StructuredOutputsParams as StructuredOutputsParams,
    )
    from .policy import Policy as Policy, PolicyReport as PolicyReport, PolicySequence as PolicySequence
    from .receipt import Receipt as Receipt, Replay as Replay, replay as replay
    from .tokenizer import Tokenizer as Tokenizer
    from .trainer import Sequence as Sequence, Trainer as Trainer, TrainerMetrics as TrainerMetrics

_MODULES = {
    "_errors": ("InvarError", "Status"),
    "async_llm": ("AsyncEngineArgs", "AsyncLLM", "AsyncLLMEngine"),
    "llm": ("EngineInfo", "LLM"),
    "lora.request": ("LoRARequest",),
    "outputs": ("CompletionOutput", "Logprob", "RequestOutput", "ScoreOutput"),
    "params": ("GuidedDecodingParams", "RequestOutputKind", "SamplingParams", "StructuredOutputsParams"),
    "policy": ("Policy", "PolicyReport", "PolicySequence"),
    "receipt": ("Receipt", "Replay", "replay"),
    "tokenizer": ("Tokenizer",),
    "trainer": ("Sequence", "Trainer", "TrainerMetrics"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = ["__version__", "audit", *sorted(_MODULE_OF)]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from ._library import version

        return version()
    if name == "audit":  # the module, which can be called
        return import_module(".audit", __name__)
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'invar' has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
