"""Losses as coefficients of log-probabilities, in float64 and in index order. A loss is a sum over tokens, so it needs no
number of the whole batch; the formulas are Tinker's (docs/TINKER.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ServerError, invalid

Array = NDArray[np.float64]
Inputs = Mapping[str, Array]
Result = tuple[Array, Array]  # -dLoss/dlogprob and the loss, for each token


def ratio_of(logprobs: Array, x: Inputs) -> Array:
    with np.errstate(over="ignore"):
        return np.exp(logprobs - x["logprobs"])


def cross_entropy(logprobs: Array, x: Inputs, _: Mapping[str, float]) -> Result:
    return x["weights"], -x["weights"] * logprobs


def importance_sampling(logprobs: Array, x: Inputs, _: Mapping[str, float]) -> Result:
    gain = _product(ratio_of(logprobs, x), x["advantages"])
    return gain, -gain


def _product(ratio: Array, advantages: Array) -> Array:
    """0 where the advantage is 0, however large the ratio."""
    with np.errstate(invalid="ignore"):
        return np.where(advantages == 0, 0.0, ratio * advantages)


def _bounds(x: Inputs, config: Mapping[str, float]) -> tuple[Any, Any]:
    low, high = (x.get(name, config[name]) for name in ("clip_low_threshold", "clip_high_threshold"))
    return low, high


def _clipped(ratio: Array, x: Inputs, config: Mapping[str, float]) -> Result:
    low, high = _bounds(x, config)
    free, bound = _product(ratio, x["advantages"]), _product(np.minimum(np.maximum(ratio, low), high), x["advantages"])
    learns = free <= bound  # the smaller one is the loss; the other is constant
    return np.where(learns, free, 0.0), -np.minimum(free, bound)


def ppo(logprobs: Array, x: Inputs, config: Mapping[str, float]) -> Result:
    return _clipped(ratio_of(logprobs, x), x, config)


def cispo(logprobs: Array, x: Inputs, config: Mapping[str, float]) -> Result:
    low, high = _bounds(x, config)
    weight = _product(np.minimum(np.maximum(ratio_of(logprobs, x), low), high), x["advantages"])
    return weight, -weight * logprobs


def dro(logprobs: Array, x: Inputs, config: Mapping[str, float]) -> Result:
    apart, counts = logprobs - x["logprobs"], x["advantages"] != 0
    beta = config["beta"]
    gain = logprobs * x["advantages"] - 0.5 * beta * apart * apart
    return np.where(counts, x["advantages"] - beta * apart, 0.0), -np.where(counts, gain, 0.0)


def gspo(logprobs: Array, x: Inputs, config: Mapping[str, float]) -> Result:
    inside = x["sequence_ratio_mask"] != 0
    if not inside.any():
        raise ServerError("sequence_ratio_mask: wanted a token that is not 0, found none")
    with np.errstate(over="ignore"):
        ratio = np.exp(np.mean((logprobs - x["logprobs"])[inside]))
    return _clipped(np.full_like(logprobs, ratio), x, config)


@dataclass(frozen=True)
class Loss:
    function: Callable[[Array, Inputs, Mapping[str, float]], Result]
    needs: tuple[str, ...]  # inputs of the same shape as target_tokens
    may_have: tuple[str, ...] = ()
    config: Mapping[str, float] | None = None  # names and defaults
    columns: bool = False  # takes several targets at one position


_RL = ("logprobs", "advantages")
_CLIPS = ("clip_low_threshold", "clip_high_threshold")
LOSSES = {
    "cross_entropy": Loss(cross_entropy, (), ("weights",), columns=True),
    "importance_sampling": Loss(importance_sampling, _RL, ("weights",)),
    "ppo": Loss(ppo, _RL, ("weights", *_CLIPS), dict(zip(_CLIPS, (0.8, 1.2)))),
    "cispo": Loss(cispo, _RL, ("weights", *_CLIPS), dict(zip(_CLIPS, (0.0, 4.0)))),
    "dro": Loss(dro, _RL, ("weights",), {"beta": 0.05}),
    "gspo": Loss(gspo, (*_RL, "sequence_ratio_mask"), ("weights", *_CLIPS), dict(zip(_CLIPS, (1 - 3e-4, 1 + 4e-4)))),
}
_REFUSED = {
    "stable_reinforce": "its formula is not public: choose another loss, or start the server with --stable-reinforce LOSS",
    "custom": "losses that run in the server are not supported: forward_backward_custom() runs them in the client",
}


def find(name: str, substitute: str | None) -> tuple[str, Loss]:
    """The loss and the name that it goes by here."""
    if name == "stable_reinforce" and substitute:
        name = substitute
    if name not in LOSSES:
        raise invalid("loss_fn", f"one of {', '.join(LOSSES)}", name, _REFUSED.get(name, ""))
    return name, LOSSES[name]


def read_config(name: str, loss: Loss, given: Mapping[str, float | str]) -> dict[str, float]:
    config = dict(loss.config or {})
    for key, value in given.items():
        if key not in config:
            raise invalid("loss_fn_config", f"{', '.join(config) or 'nothing'} for {name}", key)
        if isinstance(value, str) or not np.isfinite(value):
            raise invalid(f"loss_fn_config: {key}", "a finite number", value)
        config[key] = float(value)
    if "clip_low_threshold" in config and config["clip_low_threshold"] > config["clip_high_threshold"]:
        raise invalid("loss_fn_config: clip_low_threshold", f"at most clip_high_threshold {config['clip_high_threshold']:g}",
                      f"{config['clip_low_threshold']:g}")  # fmt: skip
    return config


def evaluate(loss: Loss, logprobs: NDArray[np.float32], x: Inputs, config: Mapping[str, float]) -> tuple[NDArray[np.float32], float]:
    """Coefficients as the trainer takes them, and the loss of the sequence."""
    coefficients, values = loss.function(logprobs.astype(np.float64), x, config)
    if loss.function is not cross_entropy and "weights" in x:
        coefficients, values = coefficients * x["weights"], values * x["weights"]
    with np.errstate(over="ignore"):
        row = coefficients.astype(np.float32)
    if not np.isfinite(row).all():
        at = int(np.flatnonzero(~np.isfinite(row))[0])
        raise invalid(f"token {at}: the loss's derivative", "a finite number", f"{coefficients[at]:g}",
                      "the log-probabilities of sampler and learner are too far apart")  # fmt: skip
    return row, float(np.sum(values))
