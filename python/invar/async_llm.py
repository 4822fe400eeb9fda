"""AsyncLLM: streams of answers for asyncio, from one engine on a thread of its own."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from . import _check
from ._engine import Engine, EngineInfo
from ._engine_args import EngineArgs, engine_args
from ._errors import InvarError, Status
from ._library import path_bytes
from ._model import find_model
from ._request import Chat, Request, chat_of
from .llm import Prompt, default_params, read_prompt
from .lora.request import LoRARequest
from .outputs import RequestOutput
from .params import RequestOutputKind, SamplingParams
from .tokenizer import Message, Tokenizer, template_variables

if TYPE_CHECKING:
    from .trainer import Trainer

AsyncEngineArgs = EngineArgs


class _Stream:
    """A request and the loop that reads it. The engine's thread sets `news`; the reader takes a snapshot."""

    def __init__(self, request: Request) -> None:
        self.request, self.loop, self.news = request, asyncio.get_running_loop(), asyncio.Event()
        self.error: BaseException | None = None

    def wake(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self.news.set)
        except RuntimeError:  # the loop is closed, so there is no reader
            pass


class AsyncLLM:
    """Options as of LLM. generate() may be called from any number of tasks, also of several loops. Closing its
    iterator, or cancelling its task, ends the request. It cannot be used after a fork."""

    def __init__(self, model: str | os.PathLike[str], **options: Any) -> None:
        self._start(engine_args(model, options))

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> AsyncLLM:
        _check.instance(args, "args", EngineArgs)
        llm = cls.__new__(cls)
        llm._start(args)
        return llm

    def _start(self, args: EngineArgs) -> None:
        self._args = args
        self._engine = Engine(args)
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}  # of the engine's thread alone
        self._waiting: list[tuple[Request, int]] = []
        self._count, self._closed = 0, False
        self._count_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="invar-engine", daemon=True)
        self._thread.start()

    # ---- facts

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def fingerprint(self) -> str:
        return self._engine.info.fingerprint

    async def get_tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    # ---- requests

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs by sampling_params.output_kind. A slow reader gets several tokens in one output."""
        text, ids = read_prompt(prompt, self._engine.tokenizer)
        async for output in self._stream(text, ids, sampling_params, request_id, 0, lora=lora_request):
            yield output

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        tools: list[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """generate() for a conversation."""
        tokenizer = self._engine.tokenizer
        text = tokenizer.apply_chat_template(
            messages, tools, chat_template, add_generation_prompt, **template_variables(chat_template_kwargs)
        )
        structured = isinstance(sampling_params, SamplingParams) and sampling_params.structure is not None
        parts = chat_of(tokenizer, text, tools)
        reasoning = parts.after if structured else 0
        ids = tokenizer.encode(text, False)
        async for output in self._stream(text, ids, sampling_params, request_id, reasoning, parts, lora_request):
            yield output

    async def _stream(
        self, text: str | None, ids: list[int], params: SamplingParams | None, request_id: str | None, reasoning: int,
        chat: Chat | None = None, lora: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        self._check_open()
        self._engine.adapters.check(lora)
        if params is not None:
            _check.instance(params, "sampling_params", SamplingParams)
        params = default_params(self._engine) if params is None else params.checked()
        if request_id is not None and not isinstance(request_id, str):
            _check.wrong("request_id", "a text", request_id)
        if request_id is None:
            with self._count_lock:
                request_id, self._count = f"invar-{self._count}", self._count + 1
        size = self.info.vocab_size
        request = Request(request_id, text, ids, params, vocab_size=size, reasoning=reasoning, chat=chat, lora=lora)
        stream = _Stream(request)
        delta = params.output_kind == RequestOutputKind.DELTA
        since = [(0, 0)] * params.n if delta else None
        self._commands.put(lambda: self._begin(stream))
        try:
            while True:
                await stream.news.wait()
                stream.news.clear()
                if stream.error is not None:
                    raise stream.error
                output = request.output(self._engine.tokenizer, self._engine.fingerprint_of(request), since)
                if output.finished or params.output_kind != RequestOutputKind.FINAL_ONLY:
                    yield output
                if output.finished:
                    return
        finally:
            if not request.finished:
                self._commands.put(lambda: self._abort(stream))

    async def abort(self, request_id: str | Sequence[str]) -> None:
        """Ends requests: their iterators yield a last output with finish_reason "abort". Unknown ids are ignored."""
        names = [request_id] if isinstance(request_id, str) else _check.listing(request_id, "request_id", "a text or a list of texts")
        for name in names:

            def end(name: str = name) -> None:
                if name in self._streams:
                    self._abort(self._streams[name])

            self._commands.put(end)

    # ---- adapters

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Loads an adapter before a request names it. False: it is loaded."""
        _check.instance(lora_request, "lora_request", LoRARequest)
        self._engine.adapters.check(lora_request)
        added: list[bool] = []
        await self._call(lambda: added.append(self._engine.adapters.add(lora_request)))
        return added[0]

    async def remove_lora(self, lora_id: int) -> bool:
        """False: no adapter has this lora_int_id."""
        removed: list[bool] = []
        await self._call(lambda: removed.append(self._engine.adapters.remove(lora_id)))
        return removed[0]

    async def list_loras(self) -> set[int]:
        ids: list[set[int]] = []
        await self._call(lambda: ids.append(self._engine.adapters.ids))
        return ids[0]

    # ---- weights

    async def update_weights(self, path: str | os.PathLike[str]) -> None:
        """Replaces the weights. InvarError (Status.BUSY) while requests run."""
        folder = path_bytes(find_model(path))
        await self._call(lambda: self._engine.update_weights(folder))

    async def sync(self, trainer: Trainer, digest: bool = False) -> None:
        """Trainer.sync for this engine."""
        from .trainer import Trainer

        _check.instance(trainer, "trainer", Trainer)

        def copy() -> None:
            with trainer._lock:
                trainer._sync(self._engine, digest)

        await self._call(copy)

    async def sync_adapter(self, trainer: Trainer, name: str) -> str:
        """Trainer.sync_adapter for this engine. Requests name the adapter by LoRARequest(name, id) without a path."""
        from .trainer import Trainer

        _check.instance(trainer, "trainer", Trainer)
        digests: list[str] = []

        def put() -> None:
            with trainer._lock:
                digests.append(trainer._sync_adapter(self._engine, name))

        await self._call(put)
        return digests[0]

    async def reset_prefix_cache(self) -> bool:
        await self._call(self._engine.reset_prefix_cache)
        return True

    async def _call(self, work: Callable[[], None]) -> None:
        self._check_open()
        future: Future[None] = Future()

        def run() -> None:
            try:
                work()
                future.set_result(None)
            except BaseException as error:
                future.set_exception(error)

        self._commands.put(run)
        await asyncio.wrap_future(future)

    # ---- life

    def shutdown(self) -> None:
        """Ends every request and frees the engine."""
        if not self._closed:
            self._closed = True
            self._commands.put(None)
            if self._thread is not threading.current_thread():
                self._thread.join()

    close = shutdown

    def __enter__(self) -> AsyncLLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _check_open(self) -> None:
        self._engine.handle.pointer  # names a fork
        if self._closed or not self._thread.is_alive():
            raise InvarError(Status.INVALID, "engine: wanted an open one, found one that was shut down")

    # ---- the engine's thread

    def _run(self) -> None:
        try:
            while self._take_commands():
                if not self._engine.running and not self._waiting:
                    continue
                self._submit_waiting()
                for request in self._engine.step():
                    self._report(request)
        except BaseException as error:
            self._fail_all(error)
        finally:
            self._fail_all(InvarError(Status.INVALID, "engine: shut down"))
            self._engine.close()

    def _take_commands(self) -> bool:
        """Runs the commands that wait; waits for one if there is nothing else to do. False: shut down."""
        idle = not self._engine.running and not self._waiting
        while True:
            try:
                command = self._commands.get(block=idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            idle = False

    def _begin(self, stream: _Stream) -> None:
        request = stream.request
        if request.request_id in self._streams:
            stream.error = InvarError(Status.INVALID, f"request_id: wanted an unused one, found {request.request_id!r}")
            stream.wake()
            return
        self._streams[request.request_id] = stream
        try:
            self._engine.prepare(request)
        except BaseException as error:
            self._fail(stream, error)
            return
        self._waiting += [(request, i) for i in range(request.params.n)]

    def _submit_waiting(self) -> None:
        while self._waiting:
            request, index = self._waiting[0]
            try:
                self._engine.submit(request, index)
            except InvarError as error:
                if error.status == Status.BUSY and self._engine.running:
                    return
                self._fail(self._streams[request.request_id], error)
                continue
            self._waiting.pop(0)

    def _report(self, request: Request) -> None:
        stream = self._streams.get(request.request_id)
        if stream is None or stream.request is not request:
            return  # it has failed
        if request.error is not None:
            self._fail(stream, request.error)
            return
        if request.finished:
            del self._streams[request.request_id]
        stream.wake()

    def _abort(self, stream: _Stream) -> None:
        request = stream.request
        if self._streams.get(request.request_id) is not stream:
            return
        queued = [item for item in self._waiting if item[0] is request]
        self._waiting = [item for item in self._waiting if item[0] is not request]
        for _, index in queued:
            request.abort(index)
        self._engine.cancel(request)
        if queued and request.finished:
            self._report(request)

    def _fail(self, stream: _Stream, error: BaseException) -> None:
        request = stream.request
        self._streams.pop(request.request_id, None)
        self._waiting = [item for item in self._waiting if item[0] is not request]
        self._engine.cancel(request)
        stream.error = error
        stream.wake()

    def _fail_all(self, error: BaseException) -> None:
        for stream in list(self._streams.values()):
            stream.error = error
            stream.wake()
        self._streams.clear()


AsyncLLMEngine = AsyncLLM  # vLLM's older name
