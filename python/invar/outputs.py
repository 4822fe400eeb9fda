"""Results by vLLM's names; `digest`, `seed`, `receipt` and `fingerprint` are invar's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .lora.request import LoRARequest


@dataclass(slots=True)
class Logprob:
    logprob: float  # natural logarithm, of the model's own distribution
    rank: int | None = None  # 1: the largest. None: not among those reported
    decoded_token: str | None = None


LogprobDict = dict[int, Logprob]


@dataclass(slots=True)
class CompletionOutput:
    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float
    logprobs: list[LogprobDict] | None = None  # with SamplingParams.logprobs
    finish_reason: str | None = None  # "stop", "length", "abort"; None: not finished
    stop_reason: int | str | None = None  # the stop string or stop id; None at the model's own end of sequence
    seed: int = 0  # the seed it was drawn with, given or not
    digest: str = ""  # SHA-256 over every token id and every bit of its log-probability, when finished
    receipt: str | None = None  # one line of JSON, with SamplingParams.receipt
    token_logprobs: list[float] = field(default_factory=list)  # of each token, always
    sampling_logprobs: list[float] | None = None  # with SamplingParams.sampling_logprobs
    logits: NDArray[np.float32] | None = None  # [tokens, vocabulary], with SamplingParams.logits
    # Of a chat, when finished: the text without marks, as the server divides it.
    reasoning: str | None = None
    content: str | None = None
    tool_calls: list[dict[str, str]] | None = None  # "name", "arguments": text of a JSON object
    is_plain: bool = False  # drawn from the model's own distribution: token_logprobs are those it was drawn with

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Wall times; of an n-fold request those of its first answer."""

    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    preemptions: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(slots=True)
class RequestOutput:
    request_id: str
    prompt: str | None  # None: given as token ids
    prompt_token_ids: list[int]
    prompt_logprobs: list[LogprobDict | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    fingerprint: str  # of everything that may change a bit; equal fingerprint and request: equal digest
    num_cached_tokens: int = 0
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    lora_request: LoRARequest | None = None


@dataclass(slots=True)
class ScoreOutput:
    """Log-probabilities of given tokens. Element t belongs to token_ids[t]; the first token has none."""

    token_ids: list[int]
    logprobs: list[float | None]
    top_logprobs: list[LogprobDict | None] | None  # with `logprobs` above 0
    start: int  # the first position that was asked for
    fingerprint: str

    @property
    def cumulative_logprob(self) -> float:
        """Of the tokens from `start` on."""
        return sum(value for value in self.logprobs[self.start :] if value is not None)
