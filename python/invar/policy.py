"""Losses of reinforcement learning as coefficients of log-probabilities, by the library (src/train/loss/algorithm.h has the
formulas)."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _check
from ._engine import struct_values
from ._errors import InvarError, Status
from ._library import c_string, check, ffi, lib, new_error
from .outputs import RequestOutput
from .trainer import Sequence, sequences_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


@dataclass
class PolicySequence:
    """A sampled sequence. behavior: the sampler's log-probabilities, one for each id; old: the learner's when the step
    began, None: the sampler's; reference: a reference model's, with Policy's kl_beta. sampled: behavior is
    sampling_logprobs, of the distribution that was drawn from, which has no ids without a token; None: it is unless the
    temperature is 1."""

    sequence: Sequence
    behavior: Any
    advantage: float = 0.0
    old: Any = None
    reference: Any = None
    sampled: bool | None = None

    @classmethod
    def from_output(cls, output: RequestOutput, index: int = 0, advantage: float = 0.0) -> PolicySequence:
        """An answer of generate(): its tokens have mask 1. The behavior is its sampling_logprobs, or its
        log-probabilities if it was drawn from the model's own distribution. InvarError: it was not, and
        SamplingParams.sampling_logprobs was not set; nothing could then be compared."""
        import numpy as np

        _check.instance(output, "output", RequestOutput)
        answer = output.outputs[_check.integer(index, "index", 0, max(0, len(output.outputs) - 1))]
        advantage = _check.number(advantage, "advantage")
        if answer.sampling_logprobs is None and not answer.is_plain:
            raise InvarError(
                Status.INVALID,
                f"request {output.request_id}: wanted SamplingParams(sampling_logprobs=True), found an answer without them that "
                "was drawn with a temperature, filter, penalty, bias or constraint: its log-probabilities are not those that it "
                "was drawn with",
            )
        values = answer.token_logprobs if answer.sampling_logprobs is None else answer.sampling_logprobs
        if len(values) != len(answer.token_ids):
            raise InvarError(Status.INVALID, f"output: wanted {len(answer.token_ids)} log-probabilities, found {len(values)}")
        start = len(output.prompt_token_ids)
        ids = np.asarray([*output.prompt_token_ids, *answer.token_ids], np.int32)
        mask, behavior = np.zeros(len(ids), np.float32), np.zeros(len(ids), np.float32)
        mask[start:], behavior[start:] = 1, values
        return cls(Sequence(ids, mask), behavior, advantage, sampled=answer.sampling_logprobs is not None)


@dataclass(frozen=True)
class PolicyReport:
    """Means over tokens with a mask (ratios of a sequence: over sequences)."""

    loss: float
    kl: float  # to the reference
    clipped_low: float
    clipped_high: float
    ratio_mean: float
    ratio_max: float
    sampler_k1: float  # KL from sampler to learner: 0 for an engine with the same bits
    sampler_k3: float
    largest_logprob: float  # differences of learner and sampler
    largest_probability: float
    sequences: int
    tokens: int
    equal: int  # tokens whose log-probability is the sampler's in every bit


class Policy:
    """An algorithm: "reinforce", "rloo", "grpo", "dr-grpo", "dapo", "gspo"."""

    def __init__(
        self,
        algorithm: str = "grpo",
        *,
        max_completion: int = 0,
        eps_low: float | None = None,
        eps_high: float | None = None,
        kl_beta: float = 0.0,
        kl: str | None = None,
        correction: str = "none",
        correction_cap: float | None = None,
    ) -> None:
        """None: the algorithm's own value. max_completion: tokens of the longest answer, which dr-grpo divides by."""
        o = self._options = ffi.new("iv_policy_options *")
        lib().iv_policy_options_init_sized(o, ffi.sizeof("iv_policy_options"))
        texts = {"algorithm": algorithm, "correction": correction} | ({} if kl is None else {"kl": kl})
        self._fields = (algorithm, max_completion, eps_low, eps_high, kl_beta, kl, correction, correction_cap)
        self._keep = {name: c_string(text, name) for name, text in texts.items()}
        for name, text in self._keep.items():
            setattr(o, name, text)
        o.max_completion = _check.integer(max_completion, "max_completion", 0, _check.SIZE_MAX)
        o.kl_beta = _check.number(kl_beta, "kl_beta", 0)
        for name, value in (("eps_low", eps_low), ("eps_high", eps_high), ("correction_cap", correction_cap)):
            if value is not None:
                setattr(o, name, _check.number(value, name, 0))
        self.denominator([PolicySequence(Sequence([0, 0], [0, 1]), [0.0, 0.0])])  # names an option that the algorithm lacks

    def __reduce__(self) -> Any:
        return _policy, self._fields

    def advantages(
        self, groups: Items[int], rewards: ArrayLike, sequences: Items[PolicySequence] | None = None
    ) -> NDArray[np.float64]:
        """Of each answer from its reward; answers to one prompt have the same group, a number below their count. rloo with
        kl_beta has its KL in the reward and wants the sequences, with their reference."""
        import numpy as np

        array = _check.host_array(rewards, "rewards")
        given = np.ascontiguousarray(array, np.float64)
        if given.ndim != 1:
            raise InvarError(Status.INVALID, f"rewards: wanted a row of numbers, found shape {given.shape}")
        if not np.isfinite(given).all():
            at = int(np.flatnonzero(~np.isfinite(given))[0])
            raise InvarError(Status.INVALID, f"rewards[{at}]: wanted a finite number, found {given[at]}")
        numbers = _check.integers(groups, "groups", 0, 2**32 - 1)
        if len(numbers) != given.size:
            raise InvarError(Status.INVALID, f"advantages: wanted {given.size} groups, found {len(numbers)}")
        out = np.empty_like(given)
        data, result = ffi.from_buffer("double[]", given), ffi.from_buffer("double[]", out, require_writable=True)
        err = new_error()
        places = ffi.new("uint32_t[]", numbers)
        if sequences is None:
            check(lib().iv_policy_advantages(self._options, places, data, given.size, result, err), err)
            return out
        batch = PolicyBatch(self, sequences)
        if batch.count != given.size:
            raise InvarError(Status.INVALID, f"advantages: wanted {given.size} sequences, found {batch.count}")
        make = lib().iv_policy_sequence_advantages
        check(make(self._options, batch.items, places, data, given.size, result, err), err)
        return out

    def denominator(self, sequences: Items[PolicySequence]) -> float:
        """The loss's global denominator, from counts and masks alone."""
        return PolicyBatch(self, sequences).denominator()

    def coefficients(self, sequences: Items[PolicySequence]) -> PolicyReport:
        """Fills each sequence's coefficients from its log-probabilities."""
        return PolicyBatch(self, sequences).coefficients()


def over_drawn_ids(sequences: Items[PolicySequence], temperature: float) -> bool:
    """Are the sampler's log-probabilities over the ids that it draws, not over all?"""
    found = {temperature != 1.0 if s.sampled is None else s.sampled for s in sequences}
    if len(found) > 1:
        raise InvarError(Status.INVALID, "sequences: wanted sampling_logprobs as the behavior of all or of none, found both")
    return found == {True}


def _policy(*fields: Any) -> Policy:
    names = ("algorithm", "max_completion", "eps_low", "eps_high", "kl_beta", "kl", "correction", "correction_cap")
    return Policy(**dict(zip(names, fields)))


class PolicyBatch:
    """Sequences as the library reads them."""

    def __init__(self, policy: Policy, sequences: Items[PolicySequence]) -> None:
        import numpy as np

        self._policy, self._keep = policy, []  # type: Policy, list[Any]
        self.sequences: list[PolicySequence] = sequences_of(sequences, "sequences", PolicySequence)
        self.items = ffi.new("iv_policy_sequence[]", len(self.sequences))
        self.count = len(self.sequences)
        for i, (item, c) in enumerate(zip(self.sequences, self.items)):
            s = item.sequence
            _check.instance(s, f"sequence {i}: sequence", Sequence)
            if item.behavior is None:
                hint = "the log-probabilities that the sampler drew with"
                raise InvarError(Status.INVALID, f"sequence {i}: behavior: wanted {hint}, found None")
            s.prepare(f"sequence {i}")
            if s.coefficients is None:
                s.coefficients = np.zeros(len(s.ids), np.float32)
            c.count, c.advantage = len(s.ids), _check.number(item.advantage, f"sequence {i}: advantage")
            c.mask, c.logprobs = self._buffer(s.mask), self._buffer(s.logprobs)
            c.coefficients = self._buffer(s.coefficients, True)
            c.behavior = self._floats(item.behavior, len(s.ids), f"sequence {i}: behavior")
            c.old = self._floats(item.old, len(s.ids), f"sequence {i}: old")
            c.reference = self._floats(item.reference, len(s.ids), f"sequence {i}: reference")

    def _buffer(self, row: Any, writable: bool = False) -> Any:
        self._keep += [row, ffi.from_buffer("float[]", row, require_writable=writable)]
        return self._keep[-1]

    def _floats(self, values: Any, count: int, what: str) -> Any:
        return ffi.NULL if values is None else self._buffer(_check.floats(values, count, what))

    def denominator(self) -> float:
        out, err = ffi.new("double *"), new_error()
        check(lib().iv_policy_denominator(self._policy._options, self.items, self.count, out, err), err)
        return float(out[0])

    def weigh(self, i: int, err: Any) -> int:
        return int(lib().iv_policy_coefficients(self._policy._options, self.items + i, 1, ffi.NULL, err))

    def coefficients(self) -> PolicyReport:
        report, err = ffi.new("iv_policy_report *"), new_error()
        check(lib().iv_policy_coefficients(self._policy._options, self.items, self.count, report, err), err)
        return PolicyReport(**struct_values(report, PolicyReport))
