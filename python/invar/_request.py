"""A request and its answers while they grow. The engine's thread appends; a snapshot may be taken by another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ._errors import InvarError, Status
from ._library import ffi, text_of, text_or_none
from .lora.request import LoRARequest
from .outputs import CompletionOutput, Logprob, LogprobDict, RequestMetrics, RequestOutput
from .params import SamplingParams
from .tokenizer import Tokenizer

FINISH = (None, "stop", "length", "abort", "error")


class Answer:
    __slots__ = ("pieces", "ids", "logprobs", "tops", "sampling", "rows", "seed", "finish", "stop", "digest", "receipt")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.tops: list[list[tuple[int, float]]] = []
        self.sampling: list[float] = []
        self.rows: list[Any] = []
        self.seed = 0
        self.finish: str | None = None
        self.stop: int | str | None = None
        self.digest = ""
        self.receipt: str | None = None


class Chat(NamedTuple):
    """How the text of an answer is divided: the tools, the reasoning after the prompt, the tokens that it shows."""

    tools: list[dict[str, Any]] | None
    after: int
    show_ids: list[int]


def chat_of(tokenizer: Tokenizer, prompt: str, tools: list[dict[str, Any]] | None) -> Chat:
    return Chat(tools, tokenizer._reasoning_after(prompt), tokenizer._form_ids(bool(tools)))


class Request:
    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        vocab_size: int,
        reasoning: int = 0,
        score_start: int | None = None,
        score_logprobs: int = 0,
        chat: Chat | None = None,
        lora: LoRARequest | None = None,
    ) -> None:
        self.request_id, self.prompt, self.prompt_ids, self.params = request_id, prompt, list(prompt_ids), params
        self.chat, self.lora, self.adapter_digest = chat, lora, ""
        self.reasoning, self.score_start, self.vocab_size = reasoning, score_start, vocab_size
        self.prompt_logprobs = params.prompt_logprobs if score_start is None else score_logprobs
        self.seeds: list[int | None] = [None] * params.n
        self.answers = [Answer() for _ in range(params.n)]
        self.prompt_values: list[tuple[float, list[tuple[int, float]]] | None] = [None] * len(self.prompt_ids)
        self.ids_data: Any = None
        self.running: set[int] = set()
        self.left = params.n
        self.cached = 0
        self.metrics = RequestMetrics()
        self.error: InvarError | None = None

    @property
    def finished(self) -> bool:
        return self.left == 0

    # ---- events, on the engine's thread

    def started(self, index: int, number: int) -> None:
        self.running.add(number)

    def token(self, index: int, event: Any) -> None:
        answer, params = self.answers[index], self.params
        if not answer.ids:
            answer.seed = event.seed
        if event.text_bytes:
            answer.pieces.append(ffi.buffer(event.text, event.text_bytes)[:])
        if params.logprobs:
            answer.tops.append([(event.top[i].id, event.top[i].logprob) for i in range(event.top_count)])
        if params.sampling_logprobs:
            answer.sampling.append(event.sampling_logprob)
        if params.logits:
            answer.rows.append(ffi.buffer(event.logits, 4 * self.vocab_size)[:])
        answer.logprobs.append(event.logprob)
        answer.ids.append(event.token)  # last: a snapshot has as many of the others

    def prompt_token(self, event: Any) -> None:
        top = [(event.top[i].id, event.top[i].logprob) for i in range(event.top_count)]
        self.prompt_values[event.position] = event.logprob, top

    def done(self, index: int, number: int, event: Any) -> None:
        answer, params = self.answers[index], self.params
        self.running.discard(number)
        if event.text_bytes:
            answer.pieces.append(ffi.buffer(event.text, event.text_bytes)[:])
        stop = text_or_none(event.stop)
        if stop is not None:
            answer.stop = stop
            if params.include_stop_str_in_output:
                answer.pieces.append(stop.encode())
        elif FINISH[event.finish] == "stop" and answer.ids and answer.ids[-1] in (params.stop_token_ids or ()):
            answer.stop = answer.ids[-1]
        if event.error != ffi.NULL:
            message = f"request {self.request_id}: {text_of(event.error)}"
            self.error = InvarError(Status(event.error_status), message)
        answer.seed, answer.digest, answer.receipt = event.seed, text_of(event.digest), text_or_none(event.receipt)
        if index == 0:
            self.cached = event.cached_tokens
            self.metrics = RequestMetrics(
                event.prefill_seconds,
                event.decode_seconds,
                event.preemptions,
                event.drafted_tokens,
                event.accepted_tokens,
            )
        answer.finish = FINISH[event.finish]
        self.left -= 1

    def abort(self, index: int) -> None:
        """Ends an answer that was not submitted."""
        self.answers[index].finish = "abort"
        self.left -= 1

    # ---- results

    def output(self, tokenizer: Tokenizer, fingerprint: str, since: list[tuple[int, int]] | None = None) -> RequestOutput:
        """Everything so far; since: only what follows those counts of tokens and of pieces of text, which are
        updated."""
        finished = self.finished
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_ids,
            prompt_logprobs=self._prompt_logprobs(tokenizer),
            outputs=[self._completion(i, tokenizer, since) for i in range(len(self.answers))],
            finished=finished,
            fingerprint=fingerprint,
            num_cached_tokens=self.cached,
            lora_request=self.lora,
            metrics=self.metrics,
        )

    def _completion(self, index: int, tokenizer: Tokenizer, since: list[tuple[int, int]] | None) -> CompletionOutput:
        answer, params = self.answers[index], self.params
        finish = answer.finish  # first: nothing follows it
        count, pieces = len(answer.ids), len(answer.pieces)
        begin, first_piece = since[index] if since is not None else (0, 0)
        if since is not None:
            since[index] = count, pieces
        ids, values = answer.ids[begin:count], answer.logprobs[begin:count]
        logprobs = None
        if params.logprobs is not None:
            tops = answer.tops[begin:count] if params.logprobs else [[]] * len(ids)
            logprobs = [logprob_dict(tokenizer, *item) for item in zip(ids, values, tops)]
        text = b"".join(answer.pieces[first_piece:pieces]).decode("utf-8", "replace") if params.detokenize else ""
        parts: dict[str, Any] = {}
        if self.chat is not None and params.detokenize and finish is not None:
            parts = tokenizer._parts(b"".join(answer.pieces), self.chat.tools, self.chat.after)
        return CompletionOutput(
            index=index,
            text=text,
            token_ids=ids,
            cumulative_logprob=sum(answer.logprobs[:count]),
            logprobs=logprobs,
            finish_reason=finish,
            stop_reason=answer.stop,
            seed=answer.seed,
            digest=answer.digest,
            receipt=answer.receipt,
            token_logprobs=values,
            sampling_logprobs=answer.sampling[begin:count] if params.sampling_logprobs else None,
            logits=self._rows(answer.rows[begin:count]) if params.logits else None,
            reasoning=parts.get("reasoning"),
            content=parts.get("content"),
            tool_calls=parts.get("tool_calls"),
            is_plain=not params.reshaped_by,
        )

    def _rows(self, rows: list[bytes]) -> Any:
        import numpy as np

        return np.frombuffer(b"".join(rows), np.float32).reshape(len(rows), self.vocab_size)

    def _prompt_logprobs(self, tokenizer: Tokenizer) -> list[LogprobDict | None] | None:
        if self.prompt_logprobs is None:
            return None
        values = zip(self.prompt_ids, self.prompt_values)
        return [None if value is None else logprob_dict(tokenizer, token, *value) for token, value in values]


def logprob_dict(tokenizer: Tokenizer, token: int, logprob: float, top: list[tuple[int, float]]) -> LogprobDict:
    """The token itself first, then the top ones by rank."""
    ranks = {other: rank for rank, (other, _) in enumerate(top, 1)}
    out = {token: Logprob(logprob, ranks.get(token), tokenizer.decoded_token(token))}
    for other, value in top:
        if other != token:
            out[other] = Logprob(value, ranks[other], tokenizer.decoded_token(other))
    return out
