"""What a sample request asks about its prompt beyond the prompt's own tokens: other tokens' log-probabilities, and draws, at positions.
Each is a request of its own to the engine, whose prefix cache has the prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tinker import types

from .._request import Request
from ..params import SamplingParams
from .errors import ServerError, invalid
from .wire import write_tensor

CELLS_MAX = 8192  # of a request


class Targets:
    """target_prompt_logprobs: [tokens - 1, columns] ids, dense or sparse; row i is scored at position i + 1, -1 is not."""

    def __init__(self, given: Any, ids: list[int], vocab_size: int) -> None:
        self._given = given
        shape = list(given.shape or [])
        if given.dtype != "int64" or len(shape) != 2 or shape[0] != len(ids) - 1 or shape[1] < 1:
            raise invalid("target_prompt_logprobs", f"int64 of shape [{len(ids) - 1}, columns]", f"{given.dtype} of shape {shape}")
        self._cells = np.asarray(given.data, np.int64)
        if given.sparse_crow_indices is not None:
            counts = np.diff(np.asarray(given.sparse_crow_indices, np.int64))
            good = len(counts) == shape[0] and (counts >= 0).all() and counts.sum() == len(self._cells) == len(given.sparse_col_indices or ())
            rows = np.repeat(np.arange(len(counts)), counts) if good else None
        else:
            rows = np.repeat(np.arange(shape[0]), shape[1]) if shape[0] * shape[1] == len(self._cells) else None
        if rows is None:
            raise invalid("target_prompt_logprobs", f"values and indices of shape {shape}", f"{len(self._cells)} values")
        bad = (self._cells < -1) | (self._cells >= vocab_size)
        if bad.any():
            raise invalid("target_prompt_logprobs", f"ids below {vocab_size}, or -1", str(self._cells[bad][0]))
        wanted = sorted({(int(row), int(cell)) for row, cell in zip(rows, self._cells) if cell >= 0})
        _check_cells("target_prompt_logprobs", len(wanted), 1)
        self._rows, self._requests = rows, {}
        for row, cell in wanted:
            self._requests[row, cell] = Request("target", None, [*ids[: row + 1], cell], SamplingParams(), vocab_size=vocab_size, score_start=row + 1)

    @property
    def requests(self) -> list[Request]:
        return list(self._requests.values())

    def write(self, out: Any) -> None:
        values = np.zeros(len(self._cells), np.float32)
        for at, (row, cell) in enumerate(zip(self._rows, self._cells)):
            if cell >= 0:
                value = self._requests[int(row), int(cell)].prompt_values[-1]
                values[at] = value[0] if value is not None else np.nan
        sparse = self._given.sparse_crow_indices is not None
        write_tensor(out, values if sparse else values.reshape(self._given.shape), self._given)


class Alternatives:
    """prompt_alt_tokens_k: draws at every position after the first, of seed + 1 + position * k if there is a seed."""

    def __init__(self, request: types.SampleRequest, ids: list[int], vocab_size: int) -> None:
        self._k = k = request.prompt_alt_tokens_k
        _check_cells("prompt_alt_tokens_k", (len(ids) - 1) * k, 0)
        given = request.sampling_params
        self.requests = []
        for at in range(1, len(ids)):
            seed = None if given.seed is None else given.seed + 1 + at * k
            params = SamplingParams(n=k, max_tokens=1, temperature=given.temperature, seed=seed)
            self.requests.append(Request("alternative", None, ids[:at], params, vocab_size=vocab_size))

    def write(self, out: Any) -> None:
        tokens: NDArray[np.int32] = np.asarray([[a.ids[0] for a in r.answers] for r in self.requests], np.int32).reshape(-1, self._k)
        values = np.asarray([[a.logprobs[0] for a in r.answers] for r in self.requests], np.float32).reshape(-1, self._k)
        write_tensor(out.tokens, tokens)
        write_tensor(out.logprobs, values)


def _check_cells(what: str, count: int, least: int) -> None:
    if not least <= count <= CELLS_MAX:
        raise ServerError(f"{what}: wanted {least} to {CELLS_MAX} tokens at positions of one prompt, found {count}")
