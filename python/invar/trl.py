"""TRL's trainers with invar's rollouts, and with the engine's forward pass as learner: `invar.trl.attach(trainer, llm)`.
TRL itself is unmodified: the engine takes the place of its vLLM backend, so that its own logs compare sampler and learner
(sampling/sampling_logp_difference)."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from . import _check
from ._errors import InvarError, Status
from .llm import LLM
from .params import SamplingParams

NEEDS = ("accelerator", "args", "max_completion_length", "min_p", "model", "repetition_penalty", "state", "temperature",
         "top_k", "top_p", "use_vllm")  # fmt: skip


class Rollouts:
    """What GRPOTrainer and RLOOTrainer call: `sync_weights()` before the first rollout of a step, then `generate()`.
    Seeds are a function of the run's seed, the step, the process and the place in the batch."""

    def __init__(self, trainer: Any, llm: LLM) -> None:
        for name in NEEDS:
            if not hasattr(trainer, name):
                kind = type(trainer).__name__
                raise InvarError(Status.UNSUPPORTED, f"trl: wanted a trainer with rollouts, found no {name} in {kind}")
        if getattr(trainer.accelerator, "distributed_type", "").upper() in ("FSDP", "DEEPSPEED"):
            kind = trainer.accelerator.distributed_type
            raise InvarError(Status.UNSUPPORTED, f"trl: wanted whole parameters in each process, found {kind}")
        self.trainer, self.llm = trainer, llm
        self._calls = 0

    def sync_weights(self) -> None:
        """The model's present weights, rounded to the checkpoint's types."""
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        self.llm.load_weights(model.named_parameters())

    def generate(
        self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any = None
    ) -> tuple[list[list[int]], list[list[int]], list[list[list[float]]], None]:
        """An answer to each prompt, as TRL's VLLMGeneration.generate returns them. The log-probabilities are those of
        the distribution that was drawn from."""
        if images is not None:
            raise InvarError(Status.UNSUPPORTED, "trl: wanted prompts of text, found images")
        plain = not self._params(0).reshaped_by and not self.llm.undrawn_ids
        params = [self._params(i, not plain) for i in range(len(prompts))]
        self._calls += 1
        with profiler if profiler is not None else contextlib.nullcontext():
            outputs = self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        answers = [output.outputs[0] for output in outputs]
        values = [a.token_logprobs if plain else a.sampling_logprobs or [] for a in answers]
        return prompts, [a.token_ids for a in answers], [[[v] for v in row] for row in values], None

    def _params(self, i: int, sampling_logprobs: bool = False) -> SamplingParams:
        t = self.trainer
        key = f"{t.args.seed} {t.state.global_step} {self._calls} {t.accelerator.process_index} {i}"
        fields = {
            "temperature": t.temperature,
            "top_p": t.top_p,
            "top_k": t.top_k or 0,
            "min_p": t.min_p or 0.0,
            "repetition_penalty": t.repetition_penalty,
            "max_tokens": t.max_completion_length,
            "seed": int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little") >> 1,
            "sampling_logprobs": sampling_logprobs,
        }
        return SamplingParams(**{**fields, **(t.args.generation_kwargs or {})})


class LearnerOutput:
    """What TRL reads of a model's output with a fused head. The entropy, of its metrics, takes another forward pass."""

    def __init__(self, log_probs: Any, entropy: Callable[[], Any]) -> None:
        self.log_probs = log_probs
        self._entropy = entropy

    @property
    def entropy(self) -> Any:
        return self._entropy()


def learn(trainer: Any, llm: LLM) -> None:
    """The trainer's model, and its reference model if it has one, compute log-probabilities as the engine does, in every
    bit (invar.torch.patch). Their parameters are float32, or of the engine's dtype."""
    from . import torch as engine

    if getattr(trainer.args, "gradient_checkpointing", False):
        raise InvarError(Status.UNSUPPORTED, "trl: gradient_checkpointing: wanted False with the engine's forward pass, found True")
    if getattr(trainer, "entropy_coef", 0):
        found = trainer.entropy_coef
        raise InvarError(Status.UNSUPPORTED, f"trl: entropy_coef: wanted 0, found {found}: entropy has no gradient here")
    model = trainer.accelerator.unwrap_model(trainer.model)
    reference = getattr(trainer, "ref_model", None)
    models = [model] if reference is None else [model, trainer.accelerator.unwrap_model(reference)]
    for one in models:
        engine.patch(one, dtype=llm.info.dtype, arithmetic=llm.info.arithmetic)
        one.forward = partial(_forward, one, one.forward, trainer.temperature, llm.undrawn_ids)


def _forward(
    model: Any, plain: Any, temperature: float, undrawn: Any, *args: Any, fused_lm_head: bool = False, **fields: Any
) -> Any:
    if not fused_lm_head:
        return plain(*args, **fields)
    return _fused(model, plain, temperature, undrawn, *args, **fields)


def _fused(
    model: Any, plain: Any, temperature: float, undrawn: list[int], input_ids: Any, attention_mask: Any, labels: Any,
    **others: Any,
) -> LearnerOutput:  # fmt: skip
    """Log-probabilities of the tokens with a label, [batch, tokens - 1], from rows without their padding."""
    import torch

    from .torch import logprobs

    unknown = [name for name, value in others.items() if value not in (None, False)]
    if unknown:
        raise InvarError(Status.UNSUPPORTED, f"trl: {', '.join(unknown)}: the engine's forward pass lacks it")
    runs = [row.nonzero().flatten() for row in attention_mask]
    bounds = [(int(run[0]), int(run[-1]) + 1) for run in runs]
    if any(len(run) != end - begin for run, (begin, end) in zip(runs, bounds)):
        raise InvarError(Status.UNSUPPORTED, "trl: attention_mask: wanted one run of ones in each row")
    masks = [labels[i, a:b] != -100 for i, (a, b) in enumerate(bounds)]
    for mask in masks:
        mask[0] = False
    values = logprobs(model, [input_ids[i, a:b] for i, (a, b) in enumerate(bounds)], masks, temperature, undrawn)
    width, parts = input_ids.shape[1], torch.split(values, [b - a for a, b in bounds])
    rows = [torch.nn.functional.pad(v, (a, width - b))[1:] for v, (a, b) in zip(parts, bounds)]

    def entropy() -> Any:
        with torch.no_grad():
            logits = plain(input_ids, attention_mask=attention_mask).logits[:, :-1] / temperature
            logs = torch.log_softmax(logits, -1)
            return -(logs.exp() * logs).sum(-1)

    return LearnerOutput(torch.stack(rows), entropy)


def warn_if_cut(params: SamplingParams) -> None:
    """TRL computes log-probabilities at the temperature, of the whole vocabulary."""
    names = [name for name in params.reshaped_by if name != "temperature"]
    if names:
        warnings.warn(
            f"invar.trl: {', '.join(names)}: tokens are drawn from another distribution than the one whose log-probabilities TRL "
            "computes: sampling/sampling_logp_difference will not be 0, and TRL's ratios have this difference in them",
            UserWarning, stacklevel=3,
        )  # fmt: skip


def attach(trainer: Any, llm: LLM, learner: bool = True) -> Rollouts:
    """From now on `trainer`, made with use_vllm=False, samples with `llm`, which was opened on the same checkpoint. The
    engine has the trainer's weights at each rollout. A UserWarning names options (top_p, penalties, ...) with which TRL's
    log-probabilities are not those of the distribution that was drawn from. learner: the trainer's log-probabilities are the engine's too;
    False: PyTorch's own forward pass, with other bits."""
    if getattr(trainer, "use_vllm", False):
        raise InvarError(Status.INVALID, "trl: wanted use_vllm=False, found True: this trainer has vLLM's rollouts")
    _check.instance(llm, "trl: llm", LLM, "attach(trainer, invar.LLM(model))")
    rollouts = Rollouts(trainer, llm)
    warn_if_cut(rollouts._params(0))
    if learner:
        learn(trainer, llm)
    trainer.use_vllm, trainer.vllm_mode = True, "server"
    trainer.vllm_generation, trainer._last_loaded_step = rollouts, -1
    return rollouts
