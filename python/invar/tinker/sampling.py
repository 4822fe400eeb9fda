"""Samplers: what a sampling session draws from, and requests of one as the client's SampleResponse."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tinker import types
from tinker.proto import tinker_public_pb2 as pb

from .._request import Answer, Request
from ..llm import LLM
from ..params import SamplingParams
from .engine import EngineThread, Job, Weights
from .errors import ServerError, invalid
from .futures import Future, Futures
from .options import Options
from .scoring import Alternatives, Targets
from .wire import PROTOBUF, write_top

log = logging.getLogger("invar.tinker")
TOP_MAX = 20


def ids_of(prompt: Any, what: str = "prompt") -> list[int]:
    ids: list[int] = []
    for i, chunk in enumerate(prompt.chunks):
        if not isinstance(chunk, types.EncodedTextChunk):
            raise invalid(f"{what}: chunk {i}", "encoded text", str(getattr(chunk, "type", chunk)), "the model reads text alone")
        ids += chunk.tokens
    if not ids:
        raise invalid(what, "at least one token", "none")
    return ids


def params_of(request: types.SampleRequest, options: Options) -> SamplingParams:
    given = request.sampling_params
    if not 1 <= request.num_samples <= options.max_samples:
        raise invalid("num_samples", f"1 to {options.max_samples} (--max-samples)", str(request.num_samples))
    for name in ("topk_prompt_logprobs", "topk_sample_logprobs"):
        if not 0 <= getattr(request, name) <= TOP_MAX:
            raise invalid(name, f"0 to {TOP_MAX}", str(getattr(request, name)))
    more: dict[str, Any] = {}
    if isinstance(given.stop, str):
        more["stop"] = [given.stop]
    elif given.stop is not None:
        stops = list(given.stop)
        more = {"ignore_eos": True} if not stops else {"stop" if isinstance(stops[0], str) else "stop_token_ids": stops}
    scores = request.prompt_logprobs or request.topk_prompt_logprobs
    return SamplingParams(
        n=request.num_samples, max_tokens=given.max_tokens, seed=given.seed, temperature=given.temperature, top_k=given.top_k, top_p=given.top_p,
        logprobs=request.topk_sample_logprobs or None, prompt_logprobs=request.topk_prompt_logprobs if scores else None,
        sampling_logprobs=is_reshaped(given), skip_special_tokens=False, **more,
    )  # fmt: skip


def is_reshaped(given: types.SamplingParams) -> bool:
    """Are tokens drawn from another distribution than the model's own? At temperature 0 nothing is drawn."""
    return given.temperature > 0 and (given.temperature != 1 or given.top_k not in (-1, 0) or given.top_p != 1)


@dataclass
class Sample:
    """A client's request as those to the engine."""

    given: types.SampleRequest
    main: Request
    start: int
    targets: Targets | None
    alternatives: Alternatives | None

    def job(self, weights: Weights, done: Callable[[Job], None]) -> Job:
        more = [part.requests for part in (self.targets, self.alternatives) if part is not None]
        return Job(weights, [self.main, *(request for part in more for request in part)], done, prompt_start=self.start)

    def response(self) -> bytes:
        out = response_of(self.given, self.main)
        if self.targets is not None:
            self.targets.write(out.target_prompt_logprobs)
        if self.alternatives is not None:
            self.alternatives.write(out.prompt_alt_tokens)
        return bytes(out.SerializeToString())


def read(request: types.SampleRequest, options: Options, vocab_size: int) -> Sample:
    ids, start = ids_of(request.prompt), 1
    last = request.prompt_logprobs_last_n
    if last is not None:
        if not request.prompt_logprobs or not 1 <= last <= len(ids) - 1:
            raise invalid("prompt_logprobs_last_n", f"1 to {len(ids) - 1}, with prompt_logprobs", str(last))
        start = len(ids) - last
    if request.prompt_alt_tokens_k < 0:
        raise invalid("prompt_alt_tokens_k", "0 or more", str(request.prompt_alt_tokens_k))
    main = Request("sample", None, ids, params_of(request, options), vocab_size=vocab_size)
    targets = None if request.target_prompt_logprobs is None else Targets(request.target_prompt_logprobs, ids, vocab_size)
    return Sample(request, main, start, targets, Alternatives(request, ids, vocab_size) if request.prompt_alt_tokens_k else None)


def response_of(request: types.SampleRequest, made: Request) -> Any:
    out = pb.SampleResponse(prompt_cache_hit_tokens=made.cached)
    reshaped = is_reshaped(request.sampling_params)
    for answer in made.answers:
        _write_answer(out.sequences.add(), answer, answer.sampling if reshaped else answer.logprobs, request.topk_sample_logprobs)
    if request.prompt_logprobs:
        values = [math.nan if value is None else value[0] for value in made.prompt_values]
        out.prompt_logprobs = np.asarray(values, "<f4").tobytes()
    if request.topk_prompt_logprobs:
        write_top(out.topk_prompt_logprobs, [value and value[1] for value in made.prompt_values], request.topk_prompt_logprobs)
    return out


def _write_answer(out: Any, answer: Answer, logprobs: list[float], top: int) -> None:
    out.stop_reason = pb.STOP_REASON_LENGTH if answer.finish == "length" else pb.STOP_REASON_STOP
    out.tokens = np.asarray(answer.ids, "<i4").tobytes()
    out.logprobs = np.asarray(logprobs, "<f4").tobytes()
    if top:
        write_top(out.topk_sampled_logprobs, answer.tops, top)


class Sampling:
    """The engines: one with the base and adapters on it; one, opened when it is first wanted, whose weights are replaced
    by those of models that learn whole."""

    def __init__(self, options: Options, base: LLM, open_llm: Callable[[], LLM], futures: Futures) -> None:
        self.options, self.futures = options, futures
        self._open = open_llm
        self._base = EngineThread(base, options.max_loras)
        self._whole: EngineThread | None = None
        self._jobs: dict[str, tuple[EngineThread, Job]] = {}

    @property
    def seconds(self) -> float:
        return self._base.seconds + (self._whole.seconds if self._whole else 0.0)

    def close(self) -> None:
        self._base.close()
        if self._whole:
            self._whole.close()

    def _engine_for(self, weights: Weights) -> EngineThread:
        if weights.is_lora or weights.folder is None:
            return self._base
        if self._whole is None:
            log.info("engine: a second one, for models whose weights all learn")
            self._whole = EngineThread(self._open(), 0)
        return self._whole

    def submit(self, request: types.SampleRequest, weights: Weights, future: Future) -> None:
        engine = self._engine_for(weights)
        sample = read(request, self.options, engine.llm.info.vocab_size)

        def done(job: Job) -> None:
            self._jobs.pop(future.request_id, None)
            if job.error is not None:
                log.info("%s: refused: %s", future.request_id, job.error)
                self.futures.fail(future, job.error)
                return
            answers = sample.main.answers
            log.debug("%s: %d answers, %d tokens, %.2f s", future.request_id, len(answers), sum(len(a.ids) for a in answers), time.monotonic() - job.began)
            try:
                self.futures.resolve(future, sample.response(), PROTOBUF)
            except Exception as error:
                self.futures.fail(future, error)

        job = sample.job(weights, done)
        self._jobs[future.request_id] = engine, job
        engine.submit(job)

    def cancel(self, request_id: str) -> None:
        found = self._jobs.get(request_id)
        if found is not None:
            found[0].cancel(found[1])


def unsupported(feature: str) -> ServerError:
    return ServerError(f"{feature}: this server does not have it (docs/TINKER.md)", 400)
