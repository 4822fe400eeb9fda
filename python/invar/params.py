"""Sampling parameters by vLLM's names."""

import copy
import json as _json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from . import _check
from ._errors import InvarError, Status


class RequestOutputKind(IntEnum):
    """What AsyncLLM yields: everything so far, what is new, or the finished answer alone."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


def _refuse(owner: Any, defaults: dict[str, tuple[Any, ...]]) -> None:
    """Fields of vLLM that the engine lacks keep their default."""
    for name, allowed in defaults.items():
        value = getattr(owner, name)
        if not any(value is known or (type(value) is type(known) and value == known) for known in allowed):
            raise InvarError(
                Status.UNSUPPORTED, f"{type(owner).__name__}.{name}: the engine lacks this field; found {value!r}"
            )


_STRUCTURED_LACKING: dict[str, tuple[Any, ...]] = {
    "whitespace_pattern": (None,),
    "structural_tag": (None,),
    "disable_additional_properties": (False,),
}


@dataclass(kw_only=True, slots=True)
class StructuredOutputsParams:
    """The form of an answer: exactly one of json, regex, choice, grammar, json_object (docs/STRUCTURED.md)."""

    json: str | dict[str, Any] | type | None = None  # a schema; a pydantic model's class
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # llama.cpp's notation
    json_object: bool | None = None
    disable_fallback: bool = False  # there is no fallback
    disable_any_whitespace: bool = False  # JSON is compact
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        self._check()

    def _check(self) -> None:
        """Fields as plain Python values. InvarError names one that is wrong."""
        what = type(self).__name__
        _refuse(self, _STRUCTURED_LACKING)
        for name in ("regex", "grammar"):
            setattr(self, name, _check.optional(_check.text, getattr(self, name), f"{what}.{name}"))
        if self.choice is not None:
            self.choice = _texts(self.choice, f"{what}.choice", "a list of texts")
        schema = self.json
        if schema is not None and not isinstance(schema, (str, Mapping)) and not hasattr(schema, "model_json_schema"):
            _check.wrong(f"{what}.json", "a schema as a dict or its text, or a pydantic model's class", schema)
        self.json_object = _check.optional(_check.flag, self.json_object, f"{what}.json_object")
        for name in ("disable_fallback", "disable_any_whitespace"):
            setattr(self, name, _check.flag(getattr(self, name), f"{what}.{name}"))
        given = [name for name in ("json", "regex", "choice", "grammar") if getattr(self, name) is not None]
        given += ["json_object"] if self.json_object else []
        if len(given) != 1:
            raise InvarError(
                Status.INVALID,
                f"{type(self).__name__}: wanted one of json, regex, choice, grammar, json_object, "
                f"found {', '.join(given) or 'none'}",
            )

    def constraint(self) -> tuple[str, str]:
        """The name of the iv_constraint_kind, and its text."""
        if self.json is not None:
            schema: Any = self.json
            if hasattr(schema, "model_json_schema"):
                schema = schema.model_json_schema()
            return "JSON_SCHEMA", schema if isinstance(schema, str) else _schema_text(schema)
        if self.regex is not None:
            return "REGEX", self.regex
        if self.choice is not None:
            return "CHOICE", _json.dumps(list(self.choice), ensure_ascii=False)
        if self.grammar is not None:
            return "GRAMMAR", self.grammar
        return "JSON_OBJECT", ""


class GuidedDecodingParams(StructuredOutputsParams):
    """vLLM's older name."""

    __slots__ = ()


def _schema_text(schema: Any) -> str:
    from ._library import to_json

    return to_json(schema, "structured_outputs.json").decode()


def _texts(value: Any, what: str, wanted: str) -> list[str]:
    return [_check.text(one, f"{what}[{i}]") for i, one in enumerate(_check.listing(value, what, wanted))]


def _biases(value: Any, what: str) -> dict[int, float]:
    """Keys are ids, or their digits as in JSON."""
    if not isinstance(value, Mapping):
        _check.wrong(what, "a dict of token ids and biases", value)
    out: dict[int, float] = {}
    for key, bias in value.items():
        token = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key
        token = _check.integer(token, f"{what}: token id", 0, _check.INT32_MAX)
        if token in out:
            raise InvarError(Status.INVALID, f"{what}: wanted each token id once, found {token} twice")
        out[token] = _check.number(bias, f"{what}[{token}]", -100, 100)
    return out


_LACKING: dict[str, tuple[Any, ...]] = {
    "bad_words": (None, []),
    "allowed_token_ids": (None, []),
    "logits_processors": (None, []),
    "truncate_prompt_tokens": (None,),
    "spaces_between_special_tokens": (True,),
    "extra_args": (None, {}),
    "flat_logprobs": (False,),
    "best_of": (None, 1),
}


N_MAX = 1 << 20
_FLAGS = (
    "include_stop_str_in_output", "ignore_eos", "detokenize", "skip_special_tokens", "sampling_logprobs", "logits", "receipt",
)  # fmt: skip
_INTEGERS = {  # field: smallest, largest
    "n": (1, N_MAX),
    "top_k": (-1, _check.INT32_MAX),
    "min_tokens": (0, _check.INT32_MAX),
    "priority": (-(2**31), _check.INT32_MAX),
}
_NUMBERS = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, _check.FLOAT32_MAX),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}


_WHOLE: dict[str, tuple[Any, ...]] = {  # values that leave the model's distribution as it is
    "temperature": (1.0,),
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "logit_bias": (None, {}),
    "min_tokens": (0,),
}


@dataclass(kw_only=True, slots=True)
class SamplingParams:
    """vLLM's fields with vLLM's defaults; the last four are invar's. Numbers may be numpy's. Fields are checked here, and again
    when a request takes a copy of them; limits that depend on the model, then."""

    n: int = 1  # answers to each prompt; answer i has seed + i
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1: off
    min_p: float = 0.0
    seed: int | None = None  # None: drawn, and reported
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16  # None: up to max_model_len
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | dict[str, float] | None = None
    logprobs: int | None = None  # of the top n and the drawn token; 0: of the drawn one alone
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    guided_decoding: StructuredOutputsParams | None = None  # vLLM's older name
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    # vLLM's that the engine lacks: other values are refused by name.
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    logits_processors: list[Any] | None = None
    truncate_prompt_tokens: int | None = None
    spaces_between_special_tokens: bool = True
    extra_args: dict[str, Any] | None = None
    flat_logprobs: bool = False
    best_of: int | None = None
    # invar's own.
    sampling_logprobs: bool = False  # log-probabilities under the distribution that tokens were drawn from
    logits: bool = False  # the whole rows of logits, as numpy
    receipt: bool = False  # a receipt for replay()
    priority: int = field(default=0)  # smaller goes first

    def __post_init__(self) -> None:
        self._check()

    def _check(self) -> None:
        """Fields as plain Python values. InvarError names one that is wrong."""
        what = "SamplingParams."
        _refuse(self, _LACKING)
        for name in _FLAGS:
            setattr(self, name, _check.flag(getattr(self, name), what + name))
        for name, (low, high) in _INTEGERS.items():
            setattr(self, name, _check.integer(getattr(self, name), what + name, low, high))
        for name, (least, most) in _NUMBERS.items():
            setattr(self, name, _check.number(getattr(self, name), what + name, least, most))
        for name in ("top_p", "repetition_penalty"):
            if getattr(self, name) == 0:
                raise InvarError(Status.INVALID, f"{what}{name}: wanted above 0, found {getattr(self, name)}")
        self.seed = _check.seed(self.seed, what + "seed")
        self.max_tokens = _check.optional(_check.integer, self.max_tokens, what + "max_tokens", 1, _check.INT32_MAX)
        for name in ("logprobs", "prompt_logprobs"):
            value = _check.optional(_check.integer, getattr(self, name), what + name, 0, 20, Status.LIMIT)
            setattr(self, name, value)
        if self.stop is not None:
            listed = [self.stop] if isinstance(self.stop, str) else self.stop
            texts = _texts(listed, what + "stop", "a text or a list of texts")
            self.stop = texts[0] if isinstance(self.stop, str) else texts
        self.stop_token_ids = _check.optional(_check.token_ids, self.stop_token_ids, what + "stop_token_ids")
        self.logit_bias = _check.optional(_biases, self.logit_bias, what + "logit_bias")
        self._check_forms(what)

    def _check_forms(self, what: str) -> None:
        for name in ("structured_outputs", "guided_decoding"):
            form = getattr(self, name)
            if form is not None:
                _check.instance(form, what + name, StructuredOutputsParams)
                form._check()
        try:
            self.output_kind = RequestOutputKind(self.output_kind)
        except ValueError:
            _check.wrong(what + "output_kind", "a RequestOutputKind", self.output_kind)
        if self.structured_outputs is not None and self.guided_decoding is not None:
            raise InvarError(
                Status.INVALID, "SamplingParams: wanted structured_outputs or guided_decoding, found both"
            )
        if not self.detokenize and self.stop:
            raise InvarError(Status.INVALID, "SamplingParams.stop: wanted none without detokenize, found some")

    def checked(self) -> "SamplingParams":
        """A copy whose fields are right: those of this object may have been assigned since it was made."""
        out = copy.copy(self)
        for name in ("structured_outputs", "guided_decoding"):
            setattr(out, name, copy.copy(getattr(out, name)))
        out._check()
        return out

    @property
    def reshaped_by(self) -> list[str]:
        """The fields with which tokens are drawn from another distribution than the model's own. None: the
        log-probabilities of tokens are those they are drawn with."""
        names = [name for name, values in _WHOLE.items() if getattr(self, name) not in values]
        return names if self.structure is None else [*names, "structured_outputs"]

    @property
    def stop_list(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def structure(self) -> StructuredOutputsParams | None:
        return self.structured_outputs if self.structured_outputs is not None else self.guided_decoding

    def clone(self) -> "SamplingParams":
        """A deep copy, as vLLM's."""
        return copy.deepcopy(self)
