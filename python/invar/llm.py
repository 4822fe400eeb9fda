"""LLM: vLLM's class of that name over an engine whose answers never change by a bit."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Union

from . import _check
from ._engine import Engine, EngineInfo as EngineInfo
from ._engine_args import engine_args
from ._errors import InvarError, Status
from ._library import path_bytes
from ._model import find_model
from ._request import Chat, Request, chat_of, logprob_dict
from .lora.request import LoRARequest
from .outputs import RequestOutput, ScoreOutput
from .params import SamplingParams
from .tokenizer import Message, Tokenizer, check_talk, template_variables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .receipt import Receipt, Replay

# A text; token ids; {"prompt": text} or {"prompt_token_ids": ids}.
Prompt = Union[str, Sequence[int], Mapping[str, Any]]
IN_FLIGHT = 2048  # submitted together; the engine's queue holds 4,096


PROMPT = 'a text, token ids, or {"prompt": text} or {"prompt_token_ids": ids}'


def prompts_of(prompts: Any, what: str = "prompts") -> list[Any]:
    """The prompts of a call, which may be one. Rows of integers, and lists that begin with a number, are one."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if _check.is_array(prompts):
        if prompts.ndim == 1:
            return [prompts]
        if prompts.ndim != 2:
            shape = list(prompts.shape)
            raise InvarError(Status.INVALID, f"{what}: wanted [tokens] or [prompts, tokens], found an array of shape {shape}")
        return list(prompts)
    items = _check.listing(prompts, what, f"{PROMPT}, or a list of those")
    scalar = items and not isinstance(items[0], (str, bytes, bytearray, Mapping)) and not _is_row(items[0])
    return [items] if scalar else items


def _is_row(item: Any) -> bool:
    return bool(item.ndim > 0) if _check.is_array(item) else _check.is_listing(item) or item is None


def read_prompt(prompt: Prompt, tokenizer: Tokenizer, add_special: bool = True, what: str = "prompt") -> tuple[str | None, list[int]]:
    """The text, if it was given as one, and the ids."""
    if isinstance(prompt, Mapping):
        unknown = {str(key) for key in prompt} - {"prompt", "prompt_token_ids"}
        if unknown:
            raise InvarError(Status.UNSUPPORTED, f"{what}: wanted prompt or prompt_token_ids, found {sorted(unknown)}")
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if text is None and ids is None:
            raise InvarError(Status.INVALID, f"{what}: wanted prompt or prompt_token_ids, found neither")
        if text is not None and not isinstance(text, str):
            _check.wrong(f'{what}["prompt"]', "a text", text)
        if ids is not None:
            return text, _check.token_ids(ids, f'{what}["prompt_token_ids"]')
        return text, tokenizer.encode(str(text), add_special)
    if isinstance(prompt, str):
        return prompt, tokenizer.encode(prompt, add_special)
    if not _check.is_listing(prompt):
        hint = "decode() it first" if isinstance(prompt, (bytes, bytearray)) else ""
        _check.wrong(what, PROMPT, prompt, hint)
    return None, _check.token_ids(prompt, f"{what}: token ids")


def read_prompts(items: list[Any], tokenizer: Tokenizer) -> list[tuple[str | None, list[int]]]:
    """Errors name the prompt's number where there are several."""
    if len(items) == 1:
        return [read_prompt(items[0], tokenizer)]
    return [read_prompt(item, tokenizer, what=f"prompt {i}") for i, item in enumerate(items)]


def talks_of(messages: Any) -> list[Any]:
    """The conversations of a call, which may be one."""
    if isinstance(messages, Mapping):
        _check.wrong("messages", "a list of messages", messages, "put it in a list")
    items = _check.listing(messages, "messages", "a list of messages, or a list of such lists")
    talks: list[Any] = [items] if not items or isinstance(items[0], Mapping) else items
    return [check_talk(talk, f"conversation {i}: " if len(talks) > 1 else "") for i, talk in enumerate(talks)]


class Progress:
    """tqdm's bar if it is installed."""

    def __init__(self, total: int, wanted: bool) -> None:
        self._bar: Any = None
        if not wanted:
            return
        try:
            tqdm = importlib.import_module("tqdm.auto").tqdm
        except ImportError:
            return
        self._bar = tqdm(total=total, desc="Processed prompts", dynamic_ncols=True)

    def add(self, count: int) -> None:
        if self._bar is not None:
            self._bar.update(count)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class LLM:
    """An engine and its offline interface. Calls of several threads run one after another. It cannot be used after a
    fork. `with LLM(...)`, close() or garbage collection frees it."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        dtype: str = "auto",
        tensor_parallel_size: int = 1,
        max_model_len: int | None = None,
        enable_prefix_caching: bool = True,
        gpu_memory_utilization: float | None = None,
        seed: int | None = None,
        device: str = "auto",
        **options: Any,
    ) -> None:
        """options: the other fields of EngineArgs. seed: of requests without one, with the prompt and how often it
        came before; None: drawn."""
        named = {
            "dtype": dtype,
            "tensor_parallel_size": tensor_parallel_size,
            "max_model_len": max_model_len,
            "enable_prefix_caching": enable_prefix_caching,
            "gpu_memory_utilization": gpu_memory_utilization,
            "seed": seed,
            "device": device,
        }
        self._engine = Engine(engine_args(model, {**named, **options}))
        self._lock = threading.RLock()
        self._count = 0

    # ---- life

    def close(self) -> None:
        with self._lock:
            self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ---- facts

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def fingerprint(self) -> str:
        """Of everything that may change a bit: numerics, arithmetic, dtype, weights, tokenizer, template."""
        return self._engine.info.fingerprint

    @property
    def undrawn_ids(self) -> list[int]:
        """Ids without a token, which are never drawn (a padded vocabulary); none with sample_all_ids."""
        return self._engine.undrawn_ids

    @property
    def model(self) -> str:
        return os.fspath(self._engine.args.model)

    def stats(self) -> dict[str, int | float]:
        """Counters since the engine was opened (iv_engine_stats)."""
        with self._lock:
            return self._engine.stats()

    def get_tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._engine.tokenizer.encode(text, add_special_tokens)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self._engine.tokenizer.decode(token_ids, skip_special_tokens)

    def get_default_sampling_params(self) -> SamplingParams:
        """vLLM's defaults with what the model's generation_config.json sets."""
        return default_params(self._engine)

    # ---- generation

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answers in the order of the prompts. Without sampling_params the model's own defaults hold. If a request
        fails, the others are ended and its error is raised. lora_request: the adapter of all prompts, or one or None for
        each."""
        items = prompts_of(prompts)
        params, loras = self._params_of(items, sampling_params), self._engine.adapters.check_each(lora_request, len(items))
        with self._lock:
            read = zip(read_prompts(items, self._engine.tokenizer), params, loras)
            requests = [self._request(*p, q, lora=lora) for p, q, lora in read]
            self._run(requests, use_tqdm)
            return [r.output(self._engine.tokenizer, self._engine.fingerprint_of(r)) for r in requests]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: list[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: dict[str, Any] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """generate() for one conversation or several, by the model's chat template or another. The text has the marks of
        reasoning and calls; outputs also have their parts."""
        talks = talks_of(messages)
        params, loras = self._params_of(talks, sampling_params), self._engine.adapters.check_each(lora_request, len(talks))
        tokenizer, requests = self._engine.tokenizer, []
        with self._lock:
            for talk, p, lora in zip(talks, params, loras):
                text = tokenizer.apply_chat_template(
                    talk, tools, chat_template, add_generation_prompt, continue_final_message,
                    **template_variables(chat_template_kwargs),
                )  # fmt: skip
                parts = chat_of(tokenizer, text, tools)
                reasoning = parts.after if p.structure and not continue_final_message else 0
                requests.append(self._request(text, tokenizer.encode(text, False), p, reasoning, chat=parts, lora=lora))
            self._run(requests, use_tqdm)
            return [r.output(tokenizer, self._engine.fingerprint_of(r)) for r in requests]

    def score(
        self,
        prompts: Prompt | Sequence[Prompt],
        completions: Prompt | Sequence[Prompt] | None = None,
        *,
        logprobs: int = 0,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        use_tqdm: bool = True,
    ) -> list[ScoreOutput]:
        """Log-probabilities of each prompt's tokens, or of each completion's after its prompt, in the bits that
        generate() reports. logprobs: also of the top n at each position."""
        items = prompts_of(prompts)
        ends: list[Any] | None = None
        if completions is not None:
            ends = prompts_of(completions, "completions")
            if len(ends) != len(items):
                raise InvarError(Status.INVALID, f"score: wanted {len(items)} completions, found {len(ends)}")
        logprobs = _check.integer(logprobs, "score: logprobs", 0, 20, Status.LIMIT)
        loras = self._engine.adapters.check_each(lora_request, len(items))
        with self._lock:
            requests = []
            for i, (text, ids) in enumerate(read_prompts(items, self._engine.tokenizer)):
                start = 1
                if ends is not None:
                    start = len(ids)
                    ids = ids + read_prompt(ends[i], self._engine.tokenizer, False, f"completion {i}")[1]
                requests.append(self._request(text, ids, SamplingParams(), 0, start, logprobs, lora=loras[i]))
            self._run(requests, use_tqdm)
            return [self._scores(r, logprobs) for r in requests]

    def _scores(self, request: Request, logprobs: int) -> ScoreOutput:
        values = request.prompt_values
        top = None
        if logprobs:
            pairs = zip(request.prompt_ids, values)
            top = [None if v is None else logprob_dict(self._engine.tokenizer, token, *v) for token, v in pairs]
        return ScoreOutput(
            token_ids=request.prompt_ids,
            logprobs=[None if value is None else value[0] for value in values],
            top_logprobs=top,
            start=request.score_start or 0,
            fingerprint=self._engine.fingerprint_of(request),
        )

    def logits(self, prompt: Prompt, lora_request: LoRARequest | None = None) -> NDArray[np.float32]:
        """The rows of logits after each token of a prompt: float32 [tokens, vocabulary]."""
        lora = self._engine.adapters.check(lora_request)
        with self._lock:
            rows: NDArray[np.float32] = self._engine.logits(read_prompt(prompt, self._engine.tokenizer)[1], lora)
            return rows

    def replay(self, receipt: str | bytes | os.PathLike[str] | Receipt) -> Replay:
        """Computes a receipt's request again and compares every bit. InvarError if this engine is not its maker's
        equal."""
        from .receipt import Receipt, replay_on

        with self._lock:
            return replay_on(self._engine, receipt if isinstance(receipt, Receipt) else Receipt(receipt))

    # ---- adapters

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Loads an adapter before a request names it. False: it is loaded."""
        _check.instance(lora_request, "lora_request", LoRARequest)
        self._engine.adapters.check(lora_request)
        with self._lock:
            return self._engine.adapters.add(lora_request)

    def remove_lora(self, lora_id: int) -> bool:
        """False: no adapter has this lora_int_id."""
        with self._lock:
            return self._engine.adapters.remove(lora_id)

    def list_loras(self) -> set[int]:
        with self._lock:
            return self._engine.adapters.ids

    # ---- weights

    def update_weights(self, path: str | os.PathLike[str]) -> None:
        """Replaces the weights by those of another checkpoint of the same shape. After an error the old ones hold."""
        folder = path_bytes(find_model(path))
        with self._lock:
            self._engine.update_weights(folder)

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Replaces the weights by named torch tensors in any order: `model.named_parameters()`, for example. Matrices
        are rounded to the engine's dtype. numpy arrays are taken for float32 and float16. After an error the old
        weights hold."""
        from ._weights import checkpoint

        with self._lock:
            info = self.info
            with checkpoint(self.model, info.dtype, info.weight_bytes, weights) as folder:
                self._engine.update_weights(path_bytes(folder))

    def reset_prefix_cache(self) -> bool:
        with self._lock:
            self._engine.reset_prefix_cache()
        return True

    # ---- inside

    def _params_of(self, items: list[Any], given: SamplingParams | Sequence[SamplingParams] | None) -> list[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        if isinstance(given, SamplingParams):
            return [given.checked()] * len(items)
        listed = _check.listing(given, "sampling_params", "SamplingParams or a list of them")
        if len(listed) != len(items):
            raise InvarError(Status.INVALID, f"sampling_params: wanted {len(items)}, found {len(listed)}")
        for i, p in enumerate(listed):
            _check.instance(p, f"sampling_params[{i}]", SamplingParams)
        return [p.checked() for p in listed]

    def _request(
        self, text: str | None, ids: list[int], params: SamplingParams, reasoning: int = 0,
        score_start: int | None = None, logprobs: int = 0, chat: Chat | None = None,
        lora: LoRARequest | None = None,
    ) -> Request:  # fmt: skip
        self._count += 1
        request = Request(
            str(self._count - 1), text, ids, params, vocab_size=self.info.vocab_size, reasoning=reasoning,
            score_start=score_start, score_logprobs=logprobs, chat=chat, lora=lora,
        )  # fmt: skip
        self._engine.prepare(request)
        return request

    def _run(self, requests: list[Request], use_tqdm: bool) -> None:
        engine, progress = self._engine, Progress(len(requests), use_tqdm)
        queue: Iterator[tuple[Request, int]] = ((r, i) for r in requests for i in range(r.params.n))
        more = True
        try:
            while True:
                while more and engine.running < IN_FLIGHT:
                    item = next(queue, None)
                    if item is None:
                        more = False
                        break
                    engine.submit(*item)
                if not engine.running:
                    break
                for request in engine.step():
                    if request.error is not None:
                        raise request.error
                    if request.finished:
                        progress.add(1)
        except BaseException:
            engine.drop_all()
            raise
        finally:
            progress.close()


def default_params(engine: Engine) -> SamplingParams:
    from ._library import ffi, lib

    r = ffi.new("iv_request *")
    lib().iv_request_init_sized(engine.handle.pointer, r, ffi.sizeof("iv_request"))
    return SamplingParams(
        temperature=r.temperature,
        top_p=r.top_p,
        top_k=r.top_k,
        min_p=r.min_p,
        repetition_penalty=r.repetition_penalty,
        max_tokens=r.max_tokens or 16,
        min_tokens=r.min_tokens,
    )
