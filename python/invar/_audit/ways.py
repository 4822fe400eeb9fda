"""The ways to send the same requests: each changes something that must not change an answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from .answers import Answer
from .endpoint import Endpoint

TOPICS = (
    "how rain forms", "why the sky is blue", "how a bicycle stays upright", "what a prime number is", "how bread rises",
    "why ships float", "how a lens bends light", "what a hash table is", "why leaves are green", "how tides work",
    "what an eclipse is", "how vaccines work", "why ice floats", "how a violin makes sound", "what inflation means",
    "how birds navigate",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    prompt: str
    fields: Mapping[str, Any]


def prompts_of(count: int, tag: str) -> list[str]:
    """Prompts of many lengths, sums and explanations in turn. tag: makes them new to the server's caches."""
    out = []
    for i in range(count):
        head = f"[{tag}-{i}] " if tag else ""
        if i % 2:
            text = f"Explain {TOPICS[i // 2 % len(TOPICS)]} to a child, in {3 + i % 5} short paragraphs."
        else:
            terms = [str((7 * i + 13 * k) % 97 + 3) for k in range(2 + (5 * i) % 23)]
            text = f"What is {' + '.join(terms)}? Add one number at a time."
        out.append(head + text)
    return out


def jobs_of(prompts: Sequence[str], max_tokens: int, temperature: float, seed: int) -> list[Job]:
    return [
        Job(p, {"max_tokens": max_tokens, "temperature": temperature, "seed": seed + i}) for i, p in enumerate(prompts)
    ]


class Sender:
    """Sends jobs one after another or together. Counts answers for progress."""

    def __init__(self, endpoint: Endpoint, jobs: Sequence[Job], concurrency: int, rng: random.Random) -> None:
        self.endpoint, self.jobs, self.concurrency, self.rng = endpoint, list(jobs), concurrency, rng

    def one(self, i: int, stream: bool = False) -> Answer:
        return self.endpoint.ask(self.jobs[i].prompt, self.jobs[i].fields, stream)

    def in_turn(self, order: Sequence[int], before: Callable[[int], None] = lambda i: None) -> list[Answer]:
        out: dict[int, Answer] = {}
        for i in order:
            before(i)
            out[i] = self.one(i)
        return [out[i] for i in range(len(self.jobs))]

    def together(self, order: Sequence[int], decoys: int = 0) -> list[Answer]:
        """decoys: as many other requests, of other lengths, among them."""
        plan: list[int | None] = list(order)
        for _ in range(decoys):
            plan.insert(self.rng.randrange(len(plan) + 1), None)
        with ThreadPoolExecutor(min(len(plan), self.concurrency)) as pool:
            sent = [(i, pool.submit(self.one, i) if i is not None else pool.submit(self._decoy)) for i in plan]
        found = {i: job.result() for i, job in sent if i is not None}
        return [found[i] for i in range(len(self.jobs))]

    def _decoy(self) -> Answer:
        words = " ".join(self.rng.choice(TOPICS) for _ in range(self.rng.randrange(1, 40)))
        most = max(1, self.jobs[0].fields["max_tokens"])
        fields = {"max_tokens": self.rng.randrange(1, most + 1), "temperature": 1.0, "seed": self.rng.randrange(1 << 30)}
        return self.endpoint.ask(words, fields)

    def clear(self, i: int) -> None:
        self.endpoint.flush()

    def clear_and_half(self, i: int) -> None:
        """The beginning of the prompt is in the cache, the rest is not."""
        self.endpoint.flush()
        prompt = self.jobs[i].prompt
        self.endpoint.ask(prompt[: len(prompt) // 2], {**self.jobs[i].fields, "max_tokens": 1})


@dataclass(frozen=True)
class Way:
    name: str
    title: str
    what: str
    send: Callable[[Sender], list[Answer]]
    needs_flush: bool = False


def _order(sender: Sender) -> list[int]:
    return list(range(len(sender.jobs)))


WAYS = (
    Way("repeat", "again, alone", "the same request once more, nothing else running", lambda s: s.in_turn(_order(s))),
    Way("order", "alone, last first", "one after another in the opposite order", lambda s: s.in_turn(_order(s)[::-1])),
    Way("batch", "all at once", "every request at the same time", lambda s: s.together(_order(s))),
    Way("batch-order", "all at once, shuffled", "at the same time, in random order",
        lambda s: s.together(s.rng.sample(_order(s), len(s.jobs)))),
    Way("decoys", "among other requests", "together with as many other requests of other lengths",
        lambda s: s.together(s.rng.sample(_order(s), len(s.jobs)), len(s.jobs))),
    Way("stream", "streamed", "alone, as a stream of events", lambda s: [s.one(i, True) for i in _order(s)]),
    Way("cold", "cold prefix cache", "alone, after the cache was cleared", lambda s: s.in_turn(_order(s), s.clear), True),
    Way("half-warm", "half-warm prefix cache", "alone, with the first half of its prompt in the cache",
        lambda s: s.in_turn(_order(s), s.clear_and_half), True),
)  # fmt: skip
