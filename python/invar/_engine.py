"""An engine with the answers of its requests: everything that LLM and AsyncLLM share. One thread at a time uses it."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._adapters import Adapters, adapted
from ._engine_args import EngineArgs
from ._check import SEED_MAX as MASK64, token_ids
from ._library import c_string, check, ffi, lib, new_error, text_of
from ._request import Request
from .lora.request import LoRARequest
from .params import SamplingParams
from .tokenizer import Tokenizer

CONSTRAINTS_KEPT = 64


@dataclass(frozen=True)
class EngineInfo:
    """Facts of an open engine."""

    fingerprint: str  # of everything that may change a bit
    model_type: str
    dtype: str
    arithmetic: str
    isa: str
    numerics: str
    device: str
    gpu: str
    weights_digest: str
    configuration_digest: str
    tokenizer_digest: str
    template_digest: str
    generation_unapplied: str
    sampled_ids_digest: str  # of the ids that may be drawn; "": all
    numerics_version: int
    tensor_parallel_size: int
    threads: int
    vocab_size: int
    max_model_len: int
    kv_tokens: int
    weight_bytes: int
    kv_bytes_per_token: int
    max_num_seqs: int
    max_num_batched_tokens: int
    load_seconds: float


def struct_values(struct: Any, cls: Any) -> dict[str, Any]:
    """The members of a C struct that a dataclass has."""
    out = {}
    for name, kind in cls.__annotations__.items():
        value = getattr(struct, name)
        out[name] = text_of(value) if kind == "str" else value
    return out


class Engine:
    def __init__(self, args: EngineArgs) -> None:
        self.args = args
        self.handle = args.open()
        self.tokenizer = Tokenizer._of_engine(self.handle)
        self._lib = lib()
        self._requests: dict[int, tuple[Request, int]] = {}
        self._event, self._busy, self._error = ffi.new("iv_event *"), ffi.new("bool *"), new_error()
        self._constraints: OrderedDict[tuple[str, str, int], Any] = OrderedDict()
        self._seen: dict[bytes, int] = {}
        self.adapters = Adapters(self.handle, args.lora_room)
        self.info = self.read_info()

    def read_info(self) -> EngineInfo:
        info = ffi.new("iv_engine_info *")
        self._lib.iv_engine_get_info(self.handle.pointer, info)
        self.info = EngineInfo(**struct_values(info, EngineInfo))
        return self.info

    @property
    def undrawn_ids(self) -> list[int]:
        if not self.info.sampled_ids_digest:
            return []
        draws, engine = self._lib.iv_engine_draws, self.handle.pointer
        return [i for i in range(self.info.vocab_size) if not draws(engine, i)]

    def close(self) -> None:
        if self.handle.is_open:
            for constraint in self._constraints.values():
                self._lib.iv_constraint_release(constraint)
        self._constraints.clear()
        self._requests.clear()
        self.handle.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the interpreter is going down, or the engine never opened
            pass

    # ---- requests

    @property
    def running(self) -> int:
        """Answers that wait or run."""
        return len(self._requests)

    def draw_seed(self, prompt_ids: Sequence[int]) -> int | None:
        """A seed for a request without one, if the engine has one: a function of that, the prompt and how often it
        came before. The order of prompts and their batches have no part in it."""
        if self.args.seed is None:
            return None
        data = b",".join(b"%d" % i for i in prompt_ids)
        key = hashlib.sha256(b"%d:%s" % (self.args.seed & MASK64, data)).digest()
        count = self._seen[key] = self._seen.get(key, -1) + 1
        return int.from_bytes(hashlib.sha256(key + b"%d" % count).digest()[:8], "little") >> 1

    def prepare(self, request: Request) -> None:
        """Seeds of a request's answers. Answer i of a given seed has seed + i, within an int64 if the seed is."""
        params = request.params
        seed = params.seed
        if seed is None:
            seed = self.draw_seed(request.prompt_ids)
        if seed is not None:
            bound = MASK64 if (seed & MASK64) >> 63 else MASK64 >> 1
            request.seeds = [((seed & MASK64) + i) & bound for i in range(params.n)]
        else:
            request.seeds = [None] * params.n

    def submit(self, request: Request, index: int) -> int:
        """Submits answer `index` of a request. Its number."""
        keep: list[Any] = []
        r, number = ffi.new("iv_request *"), ffi.new("uint64_t *")
        pointer = self.handle.pointer
        self._lib.iv_request_init_sized(pointer, r, ffi.sizeof("iv_request"))
        if request.ids_data is None:
            request.ids_data = _ids(request.prompt_ids)
        r.ids, r.id_count = request.ids_data, len(request.prompt_ids)
        r.add_special = False
        if request.lora is not None:
            request.adapter_digest = self.adapters.use(request.lora)
            keep.append(c_string(request.lora.lora_name, "lora_name"))
            r.adapter = keep[-1]
        if request.score_start is not None:
            r.score_only, r.max_tokens, r.prompt_logprobs = True, 0, request.prompt_logprobs or 0
            r.prompt_logprobs_start = request.score_start
        else:
            self._fill(r, request, index, keep)
        check(self._lib.iv_engine_submit(pointer, r, number, self._error), self._error)
        self._requests[number[0]] = request, index
        request.started(index, number[0])
        return int(number[0])

    def _fill(self, r: Any, request: Request, index: int, keep: list[Any]) -> None:
        p = request.params
        r.max_tokens, r.min_tokens = p.max_tokens or 0, p.min_tokens
        r.temperature, r.top_p, r.min_p, r.top_k = p.temperature, p.top_p, p.min_p, max(p.top_k, 0)
        r.repetition_penalty, r.presence_penalty = p.repetition_penalty, p.presence_penalty
        r.frequency_penalty = p.frequency_penalty
        r.logprobs = -1 if p.logprobs is None else p.logprobs
        r.sampling_logprobs, r.keep_logits, r.keep_receipt = p.sampling_logprobs, p.logits, p.receipt
        r.ignore_eos, r.keep_special, r.priority = p.ignore_eos, not p.skip_special_tokens, p.priority
        if p.prompt_logprobs is not None and index == 0:
            r.prompt_logprobs = p.prompt_logprobs
        seed = request.seeds[index]
        if seed is not None:
            r.has_seed, r.seed = True, seed
        stops = [c_string(stop, "stop") for stop in p.stop_list]
        if stops:
            keep += stops
            keep.append(ffi.new("char *[]", stops))
            r.stop, r.stop_count = keep[-1], len(stops)
        if p.stop_token_ids:
            keep.append(_ids(p.stop_token_ids))
            r.stop_ids, r.stop_id_count = keep[-1], len(p.stop_token_ids)
        if p.logit_bias:
            keep.append(ffi.new("iv_logit_bias[]", list(p.logit_bias.items())))
            r.logit_bias, r.logit_bias_count = keep[-1], len(p.logit_bias)
        if request.chat is not None and request.chat.show_ids:
            keep.append(_ids(request.chat.show_ids))
            r.show_ids, r.show_id_count = keep[-1], len(request.chat.show_ids)
        if p.structure is not None:
            self._constrain(r, p, request.reasoning, keep)

    def _constrain(self, r: Any, params: SamplingParams, reasoning: int, keep: list[Any]) -> None:
        assert params.structure is not None
        kind, text = params.structure.constraint()
        keep.append(c_string(text, "structured_outputs"))
        r.constraint = getattr(self._lib, f"IV_CONSTRAINT_{kind}")
        r.constraint_text, r.reasoning = keep[-1] if text else ffi.NULL, reasoning
        key = kind, text, reasoning
        compiled = self._constraints.pop(key, None)
        if compiled is None:
            out = ffi.new("iv_constraint **")
            check(self._lib.iv_engine_compile(self.handle.pointer, r, False, out, self._error), self._error)
            compiled = out[0]
        self._constraints[key] = compiled
        if len(self._constraints) > CONSTRAINTS_KEPT:
            self._lib.iv_constraint_release(self._constraints.popitem(last=False)[1])
        r.compiled = compiled

    def fingerprint_of(self, request: Request) -> str:
        return adapted(self.info.fingerprint, request.adapter_digest)

    def cancel(self, request: Request) -> None:
        """Ends a request's answers that wait or run, at the next step."""
        for number in request.running:
            self._lib.iv_engine_cancel(self.handle.pointer, number, self._error)

    def drop_all(self) -> None:
        """Ends every request and takes the rest of the events."""
        for request, _ in list(self._requests.values()):
            self.cancel(request)
        pointer = self.handle.pointer
        while not self._lib.iv_engine_step(pointer, self._busy, self._error):
            while self._lib.iv_engine_next_event(pointer, self._event):
                pass
            if not self._busy[0]:
                break
        self._requests.clear()

    # ---- steps

    def step(self) -> list[Request]:
        """Runs one step. The requests that have something new, each once."""
        pointer, event = self.handle.pointer, self._event
        check(self._lib.iv_engine_step(pointer, self._busy, self._error), self._error)
        next_event, requests = self._lib.iv_engine_next_event, self._requests
        changed: dict[Request, None] = {}
        while next_event(pointer, event):
            number = event.request
            request, index = requests[number]
            kind = event.kind
            if kind == 0:
                request.token(index, event)
            elif kind == 1:
                del requests[number]
                request.done(index, number, event)
            else:
                request.prompt_token(event)
            changed[request] = None
        return list(changed)

    def update_weights(self, path: bytes) -> None:
        check(self._lib.iv_engine_update_weights(self.handle.pointer, path, self._error), self._error)
        self.read_info()

    def reset_prefix_cache(self) -> None:
        self._lib.iv_engine_reset_prefix_cache(self.handle.pointer)

    def stats(self) -> dict[str, int | float]:
        stats = ffi.new("iv_engine_stats *")
        self._lib.iv_engine_get_stats(self.handle.pointer, stats)
        return {name: getattr(stats, name) for name, _ in ffi.typeof("iv_engine_stats").fields}

    def logits(self, ids: Sequence[int], lora: LoRARequest | None = None) -> Any:
        import numpy as np

        out = np.empty((len(ids), self.info.vocab_size), np.float32)
        data = ffi.from_buffer("float[]", out, require_writable=True)
        name = ffi.NULL
        if lora is not None:
            self.adapters.use(lora)
            name = c_string(lora.lora_name, "lora_name")
        pointer = self.handle.pointer
        check(self._lib.iv_engine_logits_with(pointer, name, _ids(ids), len(ids), data, self._error), self._error)
        return out


def _ids(ids: Sequence[int]) -> Any:
    return ffi.new("int32_t[]", token_ids(ids))
