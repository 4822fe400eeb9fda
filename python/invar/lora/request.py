"""LoRARequest, by vLLM's names."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .. import _check
from .._errors import InvarError, Status
from .._model import path_text


@dataclass(frozen=True)
class LoRARequest:
    """An adapter that PEFT has saved. It is loaded when a request names it first. One name is one adapter, unless
    load_inplace says that another takes its place. Without a path: one that Trainer.sync_adapter has put into the
    engine."""

    lora_name: str
    lora_int_id: int
    lora_path: str | os.PathLike[str] = ""
    base_model_name: str | None = None
    load_inplace: bool = False

    def __post_init__(self) -> None:
        if not _check.text(self.lora_name, "lora_name"):
            raise InvarError(Status.INVALID, "lora_name: wanted a name, found an empty text")
        _check.integer(self.lora_int_id, "lora_int_id", 1, _check.SIZE_MAX)
        if self.lora_path != "":
            object.__setattr__(self, "lora_path", path_text(self.lora_path, "lora_path"))
        _check.flag(self.load_inplace, "load_inplace")

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return str(self.lora_path)
