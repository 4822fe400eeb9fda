"""A model that learns: the library's trainer of all weights, or of an adapter of low rank, by one interface."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..trainer import Sequence, Trainer
from .errors import ServerError, invalid
from .options import Options

if TYPE_CHECKING:
    from ..llm import LLM

# Modules by the names of Hugging Face's families. Routers, and gates of shared experts, learn with neither.
_MODULES = {
    "train_attn": r".*\.(self_attn|linear_attn|conv)\.[a-z0-9_]+",
    "train_mlp": r".*\.(mlp|feed_forward)\.([a-z0-9_]+\.)*(gate_proj|up_proj|down_proj|gate_up_proj|fc1|fc2|w1|w2|w3)",
    "train_unembed": r"(.*\.)?lm_head",
}
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Spec:
    """What learns. rank 0: all weights."""

    base_model: str
    rank: int = 0
    alpha: float = 0.0
    seed: int = 0
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True

    @property
    def is_lora(self) -> bool:
        return self.rank > 0

    @property
    def targets(self) -> str:
        return "|".join(f"({text})" for name, text in _MODULES.items() if getattr(self, name))


def spec_of(options: Options, base_model: str, lora: Any) -> Spec:
    """From a create_model's LoraConfig, or None."""
    if base_model != options.name:
        raise invalid("base_model", options.name, base_model, "the server has one model")
    if lora is None or lora.rank == 0:
        if lora is not None and not (lora.train_attn and lora.train_mlp and lora.train_unembed):
            raise invalid("lora_config", "train_attn, train_mlp and train_unembed with rank 0, where all weights learn", "one that is off")
        return Spec(base_model)
    if not 1 <= lora.rank <= options.max_lora_rank:
        raise invalid("lora_config: rank", f"1 to {options.max_lora_rank} (--max-lora-rank), or 0: all weights learn", str(lora.rank))
    if not (lora.train_attn or lora.train_mlp or lora.train_unembed):
        raise invalid("lora_config", "one of train_attn, train_mlp, train_unembed", "none")
    seed = secrets.randbits(63) if lora.seed is None else lora.seed & (2**64 - 1)
    return Spec(base_model, lora.rank, options.lora_alpha, seed, lora.train_attn, lora.train_mlp, lora.train_unembed)


@dataclass(frozen=True)
class Update:
    """Of one optimizer step."""

    learning_rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    max_norm: float


class Learner:
    """Calls of one thread at a time."""

    def __init__(self, options: Options, spec: Spec, base: LLM, max_context: int) -> None:
        """longest: tokens of a sequence that is learned, of at most max_context."""
        self.spec = spec
        more: dict[str, Any] = {}
        if spec.is_lora:
            more = {"lora_rank": spec.rank, "lora_alpha": spec.alpha, "lora_seed": spec.seed, "lora_targets": spec.targets}
            if options.tensor_parallel_size == 1:
                more["base"] = base
        if options.max_context is not None:  # and a token more, the last target, in rows of 16
            more["pass_tokens"] = max(4096, -(-(max_context + 1) // 16) * 16)
        self._trainer = Trainer(
            options.model, dtype=base.info.dtype, arithmetic=base.info.arithmetic, device=base.info.device, threads=options.threads,
            virtual_ranks=options.virtual_ranks, tensor_parallel_size=options.tensor_parallel_size, recompute=options.recompute,
            run={"tinker": asdict(spec)}, **more,
        )  # fmt: skip
        info = self._trainer.info
        self.longest = min(max_context, info.pass_tokens - 1, info.max_positions - 1)

    def close(self) -> None:
        self._trainer.close()

    @property
    def weights_hash(self) -> str:
        return self._trainer.weights_hash

    @property
    def steps(self) -> int:
        return self._trainer.metrics.steps

    @property
    def memory_bytes(self) -> int:
        return self._trainer.info.memory_bytes

    # ---- steps

    def score(self, sequences: list[Sequence]) -> None:
        """Fills their log-probabilities."""
        self._trainer.score(sequences)

    def gradients(self, sequences: list[Sequence], weigh: Callable[[int, Sequence], None] | None = None) -> None:
        """The gradient of the sum of all sequences' losses waits for apply(), in place of an earlier one."""
        self._trainer.gradients(sequences, 1.0, weigh=weigh)

    def apply(self, update: Update) -> float:
        """The gradient's norm before clipping."""
        self._trainer.set_adamw(update.betas, update.eps, update.weight_decay)
        return self._trainer.apply(update.learning_rate, update.max_norm).gradient_norm

    # ---- files

    def save(self, folder: str) -> None:
        """Weights, moments and step, for load()."""
        self._trainer.save(folder, keep=1)
        write_manifest(folder, self.spec, self.steps)

    def load(self, folder: str, optimizer: bool) -> None:
        if self._trainer.restore(folder) is None:
            raise ServerError(f"{folder}: wanted a checkpoint, found none that is whole: {self._trainer.restore_notes}", 404)
        if not optimizer:
            self._trainer.forget()

    def export(self, folder: str) -> None:
        """Weights for a sampler, in the type that the forward pass multiplies by: a Hugging Face directory, or PEFT's."""
        self._trainer.export(folder)
        write_manifest(folder, self.spec, self.steps)


def write_manifest(folder: str, spec: Spec, steps: int) -> None:
    with open(os.path.join(folder, MANIFEST), "w", encoding="utf-8") as file:
        json.dump({"spec": asdict(spec), "steps": steps}, file)


def read_manifest(folder: str) -> Spec:
    try:
        with open(os.path.join(folder, MANIFEST), encoding="utf-8") as file:
            return Spec(**json.load(file)["spec"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ServerError(f"{folder}: wanted a checkpoint of this server: {error}", 404) from None
