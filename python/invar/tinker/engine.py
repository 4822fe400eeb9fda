"""An engine on a thread of its own, with many sets of weights: adapters side by side, or whole models one after another."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .._errors import InvarError, Status
from .._library import c_string, check, ffi, path_bytes
from .._request import Request
from ..llm import LLM
from .errors import ServerError, as_server_error

log = logging.getLogger("invar.tinker")


@dataclass(frozen=True)
class Weights:
    """folder None: the base model."""

    key: str
    folder: str | None = None
    is_lora: bool = False


@dataclass(eq=False)
class Job:
    """Requests under one set of weights; done() is called once, on the engine's thread."""

    weights: Weights
    requests: list[Request]
    done: Callable[[Job], None]
    prompt_start: int = 1  # the first token of the prompt that is scored
    error: ServerError | None = None
    left: int = 0
    began: float = field(default_factory=time.monotonic)
    ended: bool = False


class EngineThread:
    def __init__(self, llm: LLM, adapters: int) -> None:
        """adapters: how many fit at once; 0: the engine's weights are replaced as a whole."""
        self.llm, self._slots = llm, adapters
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: deque[tuple[Job, Request, int]] = deque()
        self._jobs: dict[Request, Job] = {}
        self._loaded: dict[str, int] = {}  # adapters by key, the one that was used longest ago first; answers that run
        self._weights = ""  # the key of the whole model that is in the engine; "": the base
        self.seconds = 0.0  # in steps of the engine
        self._thread = threading.Thread(target=self._run, name="invar-sampler", daemon=True)
        self._thread.start()

    # ---- any thread

    def submit(self, job: Job) -> None:
        self._commands.put(lambda: self._begin(job))

    def cancel(self, job: Job) -> None:
        self._commands.put(lambda: self._finish(job, ServerError("request: cancelled by the client")))

    def close(self) -> None:
        self._commands.put(None)
        self._thread.join()
        self.llm.close()

    # ---- the engine's thread

    def _run(self) -> None:
        engine = self.llm._engine
        while self._take_commands():
            self._submit_waiting()
            if not engine.running:
                continue
            begin = time.monotonic()
            try:
                with self.llm._lock:
                    changed = engine.step()
            except Exception as error:
                self._fail_all(error)
                continue
            finally:
                self.seconds += time.monotonic() - begin
            for request in changed:
                self._report(request)
        self._fail_all(ServerError("the server ends: send the request again when it is there", 503))

    def _take_commands(self) -> bool:
        idle = not self.llm._engine.running and not self._waiting
        while True:
            try:
                command = self._commands.get(block=idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            idle = False

    def _begin(self, job: Job) -> None:
        job.left = len(job.requests)
        for request in job.requests:
            self._jobs[request] = job
            self.llm._engine.prepare(request)
            self._waiting += [(job, request, i) for i in range(request.params.n)]

    def _submit_waiting(self) -> None:
        """In order; the first whose weights have no room waits for answers that run."""
        while self._waiting:
            job, request, index = self._waiting[0]
            try:
                if not self._has(job.weights):
                    return
                self._submit(job, request, index)
            except Exception as error:
                if isinstance(error, InvarError) and error.status == Status.BUSY and self.llm._engine.running:
                    return
                self._finish(job, error)
                continue
            self._waiting.popleft()
            if job.weights.is_lora:
                self._loaded[job.weights.key] += 1

    def _has(self, weights: Weights) -> bool:
        """The engine has these weights, or takes them; False: it has no room yet."""
        if weights.is_lora:
            return self._has_adapter(weights)
        key = weights.key if weights.folder is not None else ""
        if key == self._weights:
            return True
        if self.llm._engine.running:
            return False
        begin = time.monotonic()
        with self.llm._lock:
            self.llm._engine.update_weights(path_bytes(weights.folder or self.llm.model))
        self._weights = key
        log.info("engine: weights of %s, %.2f s", weights.key, time.monotonic() - begin)
        return True

    def _has_adapter(self, weights: Weights) -> bool:
        assert weights.folder is not None
        key, lib, engine = weights.key, self.llm._engine._lib, self.llm._engine
        if key in self._loaded:
            self._loaded[key] = self._loaded.pop(key)
            return True
        err = ffi.new("iv_error *")
        if len(self._loaded) >= self._slots:
            unused = next((name for name, running in self._loaded.items() if not running), None)
            if unused is None:
                return False
            with self.llm._lock:
                check(lib.iv_engine_unload_adapter(engine.handle.pointer, c_string(unused, "adapter"), err), err)
            del self._loaded[unused]
        with self.llm._lock:
            check(lib.iv_engine_load_adapter(engine.handle.pointer, c_string(key, "adapter"), path_bytes(weights.folder), err), err)
        self._loaded[key] = 0
        return True

    def _submit(self, job: Job, request: Request, index: int) -> None:
        engine, keep, number = self.llm._engine, [], ffi.new("uint64_t *")  # type: Any, list[Any], Any
        r, pointer = ffi.new("iv_request *"), engine.handle.pointer
        engine._lib.iv_request_init_sized(pointer, r, ffi.sizeof("iv_request"))
        if request.ids_data is None:
            request.ids_data = ffi.new("int32_t[]", request.prompt_ids)
        r.ids, r.id_count, r.add_special = request.ids_data, len(request.prompt_ids), False
        if request.score_start is not None:
            r.score_only, r.max_tokens, r.prompt_logprobs, r.prompt_logprobs_start = True, 0, 0, request.score_start
        else:
            engine._fill(r, request, index, keep)
            if request.params.prompt_logprobs is not None and index == 0:
                r.prompt_logprobs_start = job.prompt_start
        if job.weights.is_lora:
            keep.append(c_string(job.weights.key, "adapter"))
            r.adapter = keep[-1]
        err = ffi.new("iv_error *")
        with self.llm._lock:
            check(engine._lib.iv_engine_submit(pointer, r, number, err), err)
        engine._requests[number[0]] = request, index
        request.started(index, number[0])

    def _report(self, request: Request) -> None:
        job = self._jobs.get(request)
        if request.error is not None:
            if job is not None:
                self._finish(job, request.error)
        if not request.finished:
            return
        weights = self._jobs.pop(request).weights if job is not None else None
        if weights is not None and weights.is_lora:
            self._loaded[weights.key] -= request.params.n
        if job is not None:
            job.left -= 1
            if not job.left and not job.ended:
                self._finish(job, None)

    def _finish(self, job: Job, error: BaseException | None) -> None:
        """Ends what a failed job has in the engine; its answers end in later steps."""
        if job.ended:
            return
        job.ended = True
        if error is not None:
            job.error = as_server_error(error)
            queued = [item for item in self._waiting if item[0] is job]
            self._waiting = deque(item for item in self._waiting if item[0] is not job)
            for _, request, index in queued:
                request.abort(index)
                if job.weights.is_lora and job.weights.key in self._loaded:
                    self._loaded[job.weights.key] += 1  # _report() counts every answer down
            for request in job.requests:
                if request.finished and request in self._jobs:
                    self._report(request)
                else:
                    self.llm._engine.cancel(request)
        job.done(job)

    def _fail_all(self, error: BaseException) -> None:
        for job in {id(job): job for job in self._jobs.values()}.values():
            self._finish(job, error)
        self._waiting.clear()
        try:
            with self.llm._lock:
                self.llm._engine.drop_all()
        except InvarError:
            pass
        self._jobs.clear()
        self._loaded = dict.fromkeys(self._loaded, 0)
