"""Forward and backward of one or several requests as one batch of the trainer, and what each gets back."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..trainer import Sequence
from . import losses
from .errors import ServerError, invalid
from .losses import Loss
from .options import Options
from .wire import Datum, Pass, write_pass


@dataclass
class Column:
    """A sequence of the trainer: a datum's tokens and one target for each position."""

    sequence: Sequence
    loss: Loss
    inputs: dict[str, NDArray[np.float64]]
    config: dict[str, float]
    value: float = 0.0

    def weigh(self) -> None:
        """Coefficients from log-probabilities."""
        s = self.sequence
        row, self.value = losses.evaluate(self.loss, s.logprobs[1:], self.inputs, self.config)
        s.coefficients[1:] = row


@dataclass
class Prepared:
    """A request, checked."""

    columns: list[list[Column]] = field(default_factory=list)  # of each datum
    flat: list[bool] = field(default_factory=list)  # its targets have one dimension

    def all(self) -> list[Column]:
        return [column for datum in self.columns for column in datum]

    @property
    def tokens(self) -> int:
        return sum(len(column.sequence.ids) - 1 for column in self.all())

    def loss(self) -> float:
        return float(sum(column.value for column in self.all()))

    def output(self) -> bytes:
        rows = []
        for datum, flat in zip(self.columns, self.flat):
            each = [column.sequence.logprobs[1:] for column in datum]
            rows.append(each[0] if flat else np.stack(each, axis=1))
        return write_pass(rows, {"loss:sum": self.loss()})


def prepare(given: Pass, options: Options, longest: int) -> Prepared:
    name, loss = losses.find(given.loss, options.stable_reinforce)
    config = losses.read_config(name, loss, given.config)
    out = Prepared()
    for i, datum in enumerate(given.data):
        try:
            targets, inputs = _read(datum, name, loss, longest, options.max_target_columns)
        except ServerError as error:
            raise ServerError(f"data[{i}]: {error}", error.status) from None
        out.flat.append(targets.ndim == 1)
        columns = targets.reshape(len(targets), -1)
        each = [{key: row if row.ndim == 1 else row[:, k] for key, row in inputs.items()} for k in range(columns.shape[1])]
        out.columns.append([_column(datum.tokens, columns[:, k], loss, x, config) for k, x in enumerate(each)])
    return out


def _read(datum: Datum, name: str, loss: Loss, longest: int, most: int) -> tuple[NDArray[Any], dict[str, NDArray[np.float64]]]:
    """Targets [tokens] or [tokens, columns], and the inputs in their shape."""
    count = len(datum.tokens)
    if not 1 <= count <= longest:
        raise invalid("model_input", f"1 to {longest} tokens", str(count), "--max-context sets more, where the model has them")
    given = dict(datum.inputs)
    targets = given.pop("target_tokens", None)
    if targets is None:
        raise invalid("target_tokens", "the ids to predict", "none")
    if targets.dtype.kind != "i" or len(targets) != count:
        raise invalid("target_tokens", f"{count} integers, one for each token of model_input", f"shape {list(targets.shape)} of {targets.dtype}")
    if targets.ndim == 2 and not (loss.columns and 1 <= targets.shape[1] <= most):
        wanted = f"1 to {most} targets at a position" if loss.columns else f"one target at a position for {name}"
        raise invalid("target_tokens", wanted, str(targets.shape[1]))
    inputs = {}
    for key in (*loss.needs, *loss.may_have):
        row = given.pop(key, None)
        if row is None and key in loss.needs:
            raise invalid(key, f"as many numbers as target_tokens for {name}", "none")
        if row is None:
            continue
        if row.shape != targets.shape:
            raise invalid(key, f"shape {list(targets.shape)}, that of target_tokens", f"{list(row.shape)}")
        inputs[key] = row.astype(np.float64)
        if not np.isfinite(inputs[key]).all():
            raise invalid(key, "finite numbers", "one that is not")
    if given:
        hint = "rl/train.py of the cookbook removes it before it sends" if "mask" in given else ""
        raise invalid("loss_fn_inputs", f"target_tokens, {', '.join((*loss.needs, *loss.may_have))} for {name}", ", ".join(sorted(given)), hint)
    if loss.function is losses.cross_entropy and "weights" not in inputs:
        inputs["weights"] = np.ones(targets.shape)
    return targets, inputs


def _column(tokens: NDArray[np.int32], targets: NDArray[Any], loss: Loss, inputs: dict[str, NDArray[np.float64]], config: dict[str, float]) -> Column:
    """The last target is the last id, which nothing is predicted from."""
    count = len(tokens) + 1
    last = targets[-1]
    ids = np.empty(count, np.int32)
    ids[:-1], ids[-1] = tokens, last if 0 <= last < 2**31 else 0
    wanted = np.clip(targets, -1, 2**31 - 1).astype(np.int32)
    others = None
    if not np.array_equal(ids[1:], wanted):
        others = np.zeros(count, np.int32)
        others[1:] = wanted
    mask = np.ones(count, np.float32)
    mask[0] = 0
    return Column(Sequence(ids, mask, np.zeros(count, np.float32), targets=others), loss, inputs, config)


def sequences(requests: Items[Prepared]) -> list[Sequence]:
    return [column.sequence for request in requests for column in request.all()]
