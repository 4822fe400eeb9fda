"""How often does a server's answer change if the same request is sent in another way?

    python -m invar.audit http://127.0.0.1:8000        a table, and a page audit.html
    report = invar.audit("http://127.0.0.1:8000")      the same from Python

Works with every server that has OpenAI's /v1/chat/completions or /v1/completions. The module itself can be called."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import random
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ._audit.answers import Answer, Difference, compare, percent
from ._audit.endpoint import Endpoint
from ._audit.ways import WAYS, Job, Sender, Way, jobs_of, prompts_of
from . import _check
from ._errors import InvarError, Status


@dataclass(frozen=True)
class Cell:
    """One request sent in one way, `sent` times."""

    request: int
    sent: int
    text: int  # answers with another token, text or end
    logprob: int  # answers with the same text and other bits of log-probabilities
    error: int
    first: Difference | None  # of the first answer that differs
    answer: Answer | None  # that answer

    @property
    def different(self) -> int:
        return self.text + self.logprob

    @property
    def kind(self) -> str:
        return "text" if self.text else "logprob" if self.logprob else "error" if self.error else "equal"


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    what: str
    cells: list[Cell]
    skipped: str = ""  # why nothing was sent

    def total(self, name: str) -> int:
        return sum(int(getattr(cell, name)) for cell in self.cells)


@dataclass(frozen=True)
class Report:
    """What was compared with what, and how often it differed. Truth value: everything was answered and equal."""

    url: str
    name: str
    model: str
    api: str
    when: str
    rounds: int
    fields: dict[str, Any]
    fingerprint: str | None
    logprobs: bool  # were compared
    jobs: list[Job]
    reference: list[Answer]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    def total(self, name: str) -> int:
        """Over all rows: sent, different, text, logprob, error."""
        return sum(row.total(name) for row in self.rows)

    @property
    def equal(self) -> bool:
        return self.total("sent") > 0 and self.total("different") == self.total("error") == 0

    def __bool__(self) -> bool:
        return self.equal

    @property
    def largest_logprob(self) -> float:
        found = [cell.first.logprob for row in self.rows for cell in row.cells if cell.first is not None]
        return max(found, default=0.0)

    def summary(self) -> str:
        different, sent, failed = self.total("different"), self.total("sent") - self.total("error"), self.total("error")
        text = f"{different} of {sent} answers differ"
        if different:
            text += f" ({percent(different, sent)}): {self.total('text')} in text, {self.total('logprob')} in log-probabilities alone"
        return text + (f"; {failed} requests failed" if failed else "")

    def first_difference(self) -> str:
        """The first place of difference in words; "" if there is none."""
        found = [(cell.kind == "error", row, cell) for row in self.rows for cell in row.cells if cell.first is not None]
        if not found:
            return ""
        _, row, cell = min(found, key=lambda item: item[0])
        return f"request {cell.request}, {row.title}: {cell.first}"

    def table(self) -> str:
        from ._audit.page import text_table

        return text_table(self)

    def html(self) -> str:
        from ._audit.page import page

        return page(self)

    def svg(self) -> str:
        from ._audit.page import picture

        return picture(self)

    def to_dict(self) -> dict[str, Any]:
        rows = [
            {"name": r.name, "skipped": r.skipped, **{k: r.total(k) for k in ("sent", "different", "text", "logprob", "error")},
             "cells": [{"request": c.request, "kind": c.kind, "first": str(c.first) if c.first else None} for c in r.cells]}
            for r in self.rows
        ]  # fmt: skip
        totals = {k: self.total(k) for k in ("sent", "different", "text", "logprob", "error")}
        return {"url": self.url, "model": self.model, "api": self.api, "when": self.when, "rounds": self.rounds,
                "fields": self.fields, "fingerprint": self.fingerprint, "logprobs_compared": self.logprobs, **totals,
                "largest_logprob_difference": self.largest_logprob, "rows": rows, "notes": self.notes}  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """.html, .svg or .json, by the file's name."""
        file = pathlib.Path(path)
        writers: dict[str, Callable[[], str]] = {
            ".html": self.html, ".svg": self.svg, ".json": lambda: json.dumps(self.to_dict(), indent=1) + "\n",
        }  # fmt: skip
        if file.suffix not in writers:
            raise InvarError(Status.INVALID, f"{file}: wanted a name that ends in .html, .svg or .json")
        try:
            file.write_text(writers[file.suffix](), encoding="utf-8")
        except OSError as error:
            raise InvarError(Status.IO, f"{file}: {error.strerror}") from None


def run(
    url: str,
    *,
    model: str | None = None,
    api: str = "auto",
    api_key: str | None = None,
    prompts: Sequence[str] | None = None,
    requests: int = 16,
    rounds: int = 2,
    max_tokens: int = 64,
    temperature: float = 0.0,
    seed: int = 1,
    concurrency: int = 64,
    flush: bool = True,
    tag: str | None = None,
    timeout: float = 300.0,
    name: str = "",
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Sends `requests` requests alone, then in each of the other ways, `rounds` times, and compares the answers.

    url: http(s)://HOST:PORT, with or without /v1. model: None: the first of /v1/models. api: "chat", "completions" or
    "auto". api_key: sent as a bearer token. prompts: instead of built-in ones. flush: clears the server's prefix cache
    between requests where it has a route for that. tag: begins each built-in prompt; None: random, so that no cache has
    them. seconds of timeout: of one answer. InvarError: no server, no model, no answer."""
    counts = {"requests": requests, "rounds": rounds, "max_tokens": max_tokens, "concurrency": concurrency}
    requests, rounds, max_tokens, concurrency = (
        _check.integer(value, what, 1, _check.INT32_MAX) for what, value in counts.items()
    )
    temperature, flush = _check.number(temperature, "temperature", 0), _check.flag(flush, "flush")
    seed = _check.integer(seed, "seed", _check.SEED_MIN, _check.SEED_MAX)
    if prompts is not None:
        listed = _check.listing(prompts, "prompts", "a list of texts")
        prompts = [_check.text(one, f"prompts[{i}]") for i, one in enumerate(listed)]
        if not prompts:
            raise InvarError(Status.INVALID, "prompts: wanted at least one text, found none")
    say = progress or (lambda text: None)
    endpoint = Endpoint(url, model, api, api_key, timeout)
    texts = list(prompts) if prompts is not None else prompts_of(requests, secrets.token_hex(3) if tag is None else tag)
    jobs = jobs_of(texts, max_tokens, temperature, seed)
    say(f"{endpoint.url}: {endpoint.model}: {len(jobs)} requests, each alone")
    reference = [endpoint.probe(jobs[0].prompt, jobs[0].fields)]
    sender = Sender(endpoint, jobs, concurrency, random.Random(seed))
    for i in range(1, len(jobs)):
        reference.append(sender.one(i))
        if not reference[i].ended:
            raise InvarError(Status.UNSUPPORTED, f"{endpoint.url}: request {i}, alone: {reference[i].error}")
    notes = list(endpoint.notes)
    can_flush = flush and endpoint.can_flush()
    rows = []
    for way in WAYS:
        if way.needs_flush and not can_flush:
            why = "not asked for" if not flush else "the server has no open route that clears its prefix cache"
            rows.append(Row(way.name, way.title, way.what, [], why))
            continue
        say(f"{way.title}: {way.what}")
        rows.append(_row(sender, way, reference, rounds))
    if endpoint.retries:
        notes.append(f"The server asked to wait (429 or 503) {endpoint.retries} times; those requests were sent again.")
    if temperature > 0 and rows[0].total("text"):
        notes.append("Sampled answers differ even when repeated alone: the server may ignore the seed. Try temperature 0.")
    fields = {"max_tokens": max_tokens, "temperature": temperature, "seed": f"{seed} + number of the request"}
    return Report(
        url=endpoint.url, name=name or endpoint.url, model=endpoint.model, api=endpoint.api,
        when=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), rounds=rounds, fields=fields,
        fingerprint=reference[0].fingerprint, logprobs=all(a.logprobs for a in reference if a.text), jobs=jobs,
        reference=reference, rows=rows, notes=notes,
    )  # fmt: skip


def _row(sender: Sender, way: Way, reference: Sequence[Answer], rounds: int) -> Row:
    found: list[list[Answer]] = [way.send(sender) for _ in range(rounds)]
    refusals = {answer.error for answers in found for answer in answers}
    if len(refusals) == 1 and (refusal := refusals.pop()) is not None and refusal.startswith(("200", "4")):
        return Row(way.name, way.title, way.what, [], f"refused with {refusal}")
    cells = []
    for i, wanted in enumerate(reference):
        pairs = [(answers[i], compare(wanted, answers[i])) for answers in found]
        counts = {kind: sum(d is not None and d.kind == kind for _, d in pairs) for kind in ("text", "logprob", "error")}
        worst = next((p for kind in ("text", "logprob", "error") for p in pairs if p[1] is not None and p[1].kind == kind), None)
        first, answer = (worst[1], worst[0]) if worst else (None, None)
        cells.append(Cell(i, rounds, counts["text"], counts["logprob"], counts["error"], first, answer))
    return Row(way.name, way.title, way.what, cells)


audit = run


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Report:
        return run(*args, **options)


sys.modules[__name__].__class__ = _Callable


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m invar.audit",
        description="Sends the same requests alone, together, in other orders, with cold and warm caches, and counts "
        "answers that differ. Exit code 0: none differs; 1: some do, or requests failed; 2: nothing could be compared.",
    )
    add = parser.add_argument
    add("url", help="http://HOST:PORT of any OpenAI-compatible server")
    add("--model", help="default: the first of /v1/models")
    add("--api", default="auto", choices=("auto", "chat", "completions"))
    add("--api-key", default=os.environ.get("INVAR_API_KEY"), help="default: $INVAR_API_KEY")
    add("--prompts", metavar="FILE", help="one prompt a line, instead of built-in ones")
    add("--requests", type=int, default=16, help="number of built-in prompts (16)")
    add("--rounds", type=int, default=2, help="how often each way is tried (2)")
    add("--max-tokens", type=int, default=64)
    add("--temperature", type=float, default=0.0)
    add("--seed", type=int, default=1)
    add("--concurrency", type=int, default=64, help="most requests at the same time (64)")
    add("--no-flush", action="store_true", help="do not clear the server's prefix cache")
    add("--tag", help="begins each built-in prompt; default: random")
    add("--timeout", type=float, default=300.0, help="seconds for one answer (300)")
    add("--name", default="", help="heading of the page; default: the URL")
    add("-o", "--output", action="append", metavar="FILE", help="FILE.html, .svg or .json; may be repeated (audit.html)")
    add("--quiet", action="store_true", help="no progress")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    a = _arguments(words)
    try:
        prompts = None
        if a.prompts:
            lines = pathlib.Path(a.prompts).read_text(encoding="utf-8").splitlines()
            prompts = [line for line in lines if line.strip()]
        report = run(
            a.url, model=a.model, api=a.api, api_key=a.api_key, prompts=prompts, requests=a.requests, rounds=a.rounds,
            max_tokens=a.max_tokens, temperature=a.temperature, seed=a.seed, concurrency=a.concurrency,
            flush=not a.no_flush, tag=a.tag, timeout=a.timeout, name=a.name,
            progress=None if a.quiet else lambda text: print(text, file=sys.stderr, flush=True),
        )  # fmt: skip
        print(report.table())
        for path in a.output or ["audit.html"]:
            report.save(path)
            print(f"written to {path}")
    except (InvarError, OSError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0 if report.equal else 1


if __name__ == "__main__":
    sys.exit(main())
