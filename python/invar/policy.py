"""Losses of reinforcement learning as coefficients of log-probabilities, by the library (src/train/algorithm.h has the
formulas)."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._engine import struct_values
from ._errors import InvarError, Status
from ._library import check, encode, ffi, lib, new_error
from .outputs import RequestOutput
from .trainer import Sequence, floats_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


@dataclass
class PolicySequence:
    """A sampled sequence. behavior: the sampler's log-probabilities, one for each id; old: the learner's when the step
    began, None: the sampler's; reference: a reference model's, with Policy's kl_beta."""

    sequence: Sequence
    behavior: Any
    advantage: float = 0.0
    old: Any = None
    reference: Any = None

    @classmethod
    def from_output(cls, output: RequestOutput, index: int = 0, advantage: float = 0.0) -> PolicySequence:
        """An answer of generate(): its tokens have mask 1. Its sampling_logprobs are the behavior if it has them, else
        its log-probabilities at temperature 1."""
        import numpy as np

        answer = output.outputs[index]
        values = answer.token_logprobs if answer.sampling_logprobs is None else answer.sampling_logprobs
        start = len(output.prompt_token_ids)
        ids = np.asarray([*output.prompt_token_ids, *answer.token_ids], np.int32)
        mask, behavior = np.zeros(len(ids), np.float32), np.zeros(len(ids), np.float32)
        mask[start:], behavior[start:] = 1, values
        return cls(Sequence(ids, mask), behavior, advantage)


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
        self._keep = [ffi.new("char[]", encode(text, "policy")) for text in (algorithm, correction)]
        o.algorithm, o.correction = self._keep
        if kl is not None:
            self._keep.append(ffi.new("char[]", encode(kl, "policy")))
            o.kl = self._keep[-1]
        o.max_completion, o.kl_beta = max_completion, kl_beta
        for name, value in (("eps_low", eps_low), ("eps_high", eps_high), ("correction_cap", correction_cap)):
            if value is not None:
                setattr(o, name, value)

    def advantages(
        self, groups: Items[int], rewards: ArrayLike, sequences: Items[PolicySequence] | None = None
    ) -> NDArray[np.float64]:
        """Of each answer from its reward; answers to one prompt have the same group, a number below their count. rloo with
        kl_beta has its KL in the reward and wants the sequences, with their reference."""
        import numpy as np

        given = np.ascontiguousarray(rewards, np.float64)
        out = np.empty_like(given)
        if len(groups) != given.size:
            raise InvarError(Status.INVALID, f"advantages: wanted {given.size} groups, found {len(groups)}")
        data, result = ffi.from_buffer("double[]", given), ffi.from_buffer("double[]", out, require_writable=True)
        err = new_error()
        numbers = ffi.new("uint32_t[]", [int(group) for group in groups])
        if sequences is None:
            check(lib().iv_policy_advantages(self._options, numbers, data, given.size, result, err), err)
            return out
        if len(sequences) != given.size:
            raise InvarError(Status.INVALID, f"advantages: wanted {given.size} sequences, found {len(sequences)}")
        batch = PolicyBatch(self, sequences)
        make = lib().iv_policy_sequence_advantages
        check(make(self._options, batch.items, numbers, data, given.size, result, err), err)
        return out

    def denominator(self, sequences: Items[PolicySequence]) -> float:
        """The loss's global denominator, from counts and masks alone."""
        return PolicyBatch(self, sequences).denominator()

    def coefficients(self, sequences: Items[PolicySequence]) -> PolicyReport:
        """Fills each sequence's coefficients from its log-probabilities."""
        return PolicyBatch(self, sequences).coefficients()


class PolicyBatch:
    """Sequences as the library reads them."""

    def __init__(self, policy: Policy, sequences: Items[PolicySequence]) -> None:
        import numpy as np

        self._policy, self._keep = policy, []  # type: Policy, list[Any]
        self.items = ffi.new("iv_policy_sequence[]", len(sequences))
        self.count = len(sequences)
        for i, (item, c) in enumerate(zip(sequences, self.items)):
            s = item.sequence
            s.prepare(f"sequence {i}")
            if s.coefficients is None:
                s.coefficients = np.zeros(len(s.ids), np.float32)
            c.count, c.advantage = len(s.ids), item.advantage
            c.mask, c.logprobs = self._floats(s.mask, len(s.ids), "mask"), self._floats(s.logprobs, len(s.ids), "")
            c.coefficients = self._floats(s.coefficients, len(s.ids), "coefficients", True)
            c.behavior = self._floats(item.behavior, len(s.ids), f"sequence {i}: behavior")
            c.old = self._floats(item.old, len(s.ids), f"sequence {i}: old")
            c.reference = self._floats(item.reference, len(s.ids), f"sequence {i}: reference")

    def _floats(self, values: Any, count: int, what: str, writable: bool = False) -> Any:
        if values is None:
            return ffi.NULL
        self._keep.append(floats_of(values, count, what))
        self._keep.append(ffi.from_buffer("float[]", self._keep[-1], require_writable=writable))
        return self._keep[-1]

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
