"""Answers of an OpenAI-compatible server, and the first place where two of them differ."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: tuple[int | str, ...] = ()  # ids if the server reports them, else spellings; empty: not reported
    logprobs: tuple[float, ...] = ()  # of each token; empty: not reported
    finish: str | None = None
    fingerprint: str | None = None  # system_fingerprint
    digest: str | None = None  # invar's
    error: str | None = None  # there is no answer

    @property
    def ended(self) -> bool:
        return self.error is None


@dataclass(frozen=True)
class Difference:
    """kind: "text" (a token, the text or the end differs), "logprob" (only bits of log-probabilities), "error"."""

    kind: str
    token: int | None  # the first token that differs
    wanted: str
    found: str
    logprob: float = 0.0  # largest difference of log-probabilities up to the first other token

    def __str__(self) -> str:
        at = "" if self.token is None else f"token {self.token}: "
        return f"{at}wanted {self.wanted}, found {self.found}"


def float32_bits(value: float) -> str:
    try:
        return f"0x{struct.unpack('<I', struct.pack('<f', value))[0]:08x}"
    except OverflowError:
        return repr(value)


def same_bits(a: float, b: float) -> bool:
    return struct.pack("<d", a) == struct.pack("<d", b)


def compare(wanted: Answer, found: Answer) -> Difference | None:
    """None: equal in everything that both report."""
    if not found.ended or not wanted.ended:
        return Difference("error", None, wanted.error or "an answer", found.error or "an answer")
    largest, first = 0.0, None
    for t, (a, b) in enumerate(zip(wanted.tokens, found.tokens)):
        if a != b:
            return Difference("text", t, _token(wanted, t), _token(found, t), largest)
        if t < len(wanted.logprobs) and t < len(found.logprobs) and not same_bits(wanted.logprobs[t], found.logprobs[t]):
            largest = max(largest, abs(wanted.logprobs[t] - found.logprobs[t]))
            first = t if first is None else first
    if len(wanted.tokens) != len(found.tokens) or wanted.finish != found.finish:
        t = min(len(wanted.tokens), len(found.tokens))
        return Difference("text", t, _token(wanted, t), _token(found, t), largest)
    if wanted.text != found.text:
        return Difference("text", None, *_texts(wanted.text, found.text), largest)
    if first is not None:
        return Difference("logprob", first, _token(wanted, first), _token(found, first), largest)
    if wanted.digest != found.digest:
        return Difference("logprob", None, str(wanted.digest), str(found.digest))
    return None


def _token(answer: Answer, t: int) -> str:
    if t >= len(answer.tokens):
        return f"the end ({answer.finish})"
    value = answer.tokens[t]
    text = f"id {value}" if isinstance(value, int) else repr(value)
    if t < len(answer.logprobs):
        text += f" logprob {answer.logprobs[t]!r} ({float32_bits(answer.logprobs[t])})"
    return text


def _texts(a: str, b: str) -> tuple[str, str]:
    """Both texts from a little before their first difference."""
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    begin = max(0, at - 12)
    return f"{a[begin : at + 24]!r} at character {at}", f"{b[begin : at + 24]!r}"


def read_answer(body: Mapping[str, Any]) -> Answer:
    """The first choice of a chat completion or completion. KeyError, TypeError or ValueError: not such a body."""
    choice = body["choices"][0]
    message = choice.get("message")
    if message is not None:
        text = (message.get("reasoning_content") or message.get("reasoning") or "") + (message.get("content") or "")
    else:
        text = choice["text"]
    tokens, logprobs = _logprobs(choice.get("logprobs"))
    ids = choice.get("token_ids")
    return Answer(
        text=str(text),
        tokens=tuple(ids) if ids else tokens,
        logprobs=logprobs,
        finish=choice.get("finish_reason"),
        fingerprint=body.get("system_fingerprint"),
        digest=(body.get("invar") or {}).get("digest"),
    )


def _logprobs(given: Any) -> tuple[tuple[str, ...], tuple[float, ...]]:
    if not isinstance(given, Mapping):
        return (), ()
    if given.get("content") is not None:  # of chats
        items = [(entry["token"], entry["logprob"]) for entry in given["content"]]
    else:
        items = list(zip(given.get("tokens") or (), given.get("token_logprobs") or ()))
    return tuple(str(token) for token, _ in items), tuple(float(v) if v is not None else 0.0 for _, v in items)


def join_events(events: list[Mapping[str, Any]]) -> Answer:
    """The answer of a stream of one choice."""
    parts, tokens, logprobs = [], [], []  # type: list[str], list[int | str], list[float]
    ids: list[int] = []
    finish = fingerprint = digest = None
    for event in events:
        fingerprint = event.get("system_fingerprint") or fingerprint
        digest = (event.get("invar") or {}).get("digest") or digest
        for choice in event.get("choices") or ():
            delta = choice.get("delta")
            if delta is not None:
                parts.append((delta.get("reasoning_content") or delta.get("reasoning") or "") + (delta.get("content") or ""))
            else:
                parts.append(choice.get("text") or "")
            new = _logprobs(choice.get("logprobs"))
            tokens += new[0]
            logprobs += new[1]
            ids += choice.get("token_ids") or ()
            finish = choice.get("finish_reason") or finish
    return Answer("".join(parts), tuple(ids) if ids else tuple(tokens), tuple(logprobs), finish, fingerprint, digest)


def percent(part: int, whole: int) -> str:
    """Never 0 % for some, never 100 % for less than all."""
    share = 100 * part / whole if whole else 0.0
    if part in (0, whole):
        return f"{share:.0f} %"
    return f"{min(max(share, 0.1), 99.9):.1f} %" if share < 1 or share > 99 else f"{share:.0f} %"


def brief(text: str, limit: int = 300) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[:limit] + "..."
