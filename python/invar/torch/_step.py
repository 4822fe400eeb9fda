"""A step: its sequences over virtual ranks, and sums over tokens in progress (docs/NUMERICS.md 15.2, 15.3)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence as Items
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from .. import _check
from .._errors import Status
from ._native import Axis, Sums, refuse, virtual_ranks_of

_active = threading.local()  # .part: the Pass that a `with` entered on this thread


def active_pass() -> Pass | None:
    return getattr(_active, "part", None)


class Step:
    """The sequences of one optimizer step, by their lengths in the order of the whole batch. Sequences belong to
    virtual ranks by length alone, and a process owns whole virtual ranks: neither the number of processes nor the
    division into passes can change a sum."""

    def __init__(self, lengths: Items[int], virtual_ranks: int = 8, group: Any = None, alone: bool = False) -> None:
        """group: the data-parallel processes; None: all of torch.distributed if it is initialized. Their number divides
        virtual_ranks. alone: this process is the only one, whatever torch.distributed says."""
        virtual_ranks = _check.integer(virtual_ranks, "step: virtual_ranks", 1, _check.INT32_MAX)
        self.lengths = _check.integers(lengths, "step: lengths", 1)
        started = torch.distributed.is_available() and torch.distributed.is_initialized() and not alone
        self.group = group
        self.rank = torch.distributed.get_rank(group) if started else 0
        self.world = torch.distributed.get_world_size(group) if started else 1
        if virtual_ranks % self.world:
            raise refuse(
                f"step: wanted a divisor of the {virtual_ranks} virtual ranks as the number of processes, found {self.world}"
            )
        each = virtual_ranks // self.world
        dealt = virtual_ranks_of(self.lengths, virtual_ranks)
        self._counts = [sum(len(v) for v in dealt[r * each : (r + 1) * each]) for r in range(self.world)]
        mine = dealt[self.rank * each : (self.rank + 1) * each]
        self.virtual_ranks = each  # of this process
        self.indices = [i for part in mine for i in part]  # this process's sequences, in order of the sums
        self.ranks = [v for v, part in enumerate(mine) for _ in part]
        self.sums: dict[str, Sums] = {}
        self.lookups: list[tuple[Tensor, Tensor, Tensor]] = []  # ids, virtual ranks, gradients of embedded tokens

    def passes(self, size: int | None = None, model: Any = None) -> Iterator[Pass]:
        """Parts of `size` sequences of this process, as `with` blocks; None: one. All processes get as many, some
        perhaps without a sequence. model: a DDP or FSDP2 model, which then communicates in the last pass only."""
        from ._distributed import last_only

        size = max(1, *self._counts) if size is None else _check.integer(size, "passes: size", 1, _check.INT32_MAX)
        count = max(1, *(-(-n // size) for n in self._counts))
        for i in range(count):
            first, last = min(i * size, len(self.indices)), min((i + 1) * size, len(self.indices))
            with last_only(model, i + 1 == count):
                yield Pass(self, first, last, i + 1 == count, count > 1)


class Pass:
    """Sequences [first, last) of this process in a step: one forward and one backward. `indices` names them in the
    step's lengths."""

    def __init__(self, step: Step, first: int, last: int, is_last: bool, several: bool) -> None:
        self.step, self.first, self.last, self.is_last = step, first, last, is_last
        self.indices = step.indices[first:last]
        self.lengths = [step.lengths[i] for i in self.indices]
        self._levels = (step.virtual_ranks - 1).bit_length() if several else 0
        self._axis: Axis | None = None

    def __enter__(self) -> Pass:
        if active_pass() is not None:
            raise refuse("step: a pass is inside another", Status.INVALID)
        _active.part = self
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        _active.part = None

    def axis(self, tokens: Items[int] | None = None) -> Axis:
        """Of all tokens, or of so many of each sequence."""
        if tokens is not None:
            return Axis(self.step.ranks, self.step.virtual_ranks, self.first, self.last, tokens)
        if self._axis is None:
            self._axis = self.axis(self.lengths)
        return self._axis

    def sums(self, name: str, like: Tensor) -> Sums:
        if name not in self.step.sums:
            self.step.sums[name] = Sums(like.shape, self._levels, like.device)
        return self.step.sums[name]

    def gradient(self, name: str) -> Tensor | None:
        """What autograd gets: the sum over this process's tokens in the last pass; before that, nothing."""
        return self.step.sums.pop(name).sum if self.is_last else None

    def token_ranks(self) -> Tensor:
        ranks = torch.tensor(self.step.ranks[self.first : self.last], dtype=torch.int32)
        return torch.repeat_interleave(ranks, torch.tensor(self.lengths, dtype=torch.int64))
