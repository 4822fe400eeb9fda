"""Sampling parameters by vLLM's names."""

import json as _json
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

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
        if not any(value is known or (value == known and type(value) is type(known)) for known in allowed):
            raise InvarError(
                Status.UNSUPPORTED, f"{type(owner).__name__}.{name}: the engine lacks this field; found {value!r}"
            )


_STRUCTURED_LACKING: dict[str, tuple[Any, ...]] = {
    "whitespace_pattern": (None,),
    "structural_tag": (None,),
    "disable_additional_properties": (False,),
}


@dataclass(kw_only=True)
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
        _refuse(self, _STRUCTURED_LACKING)
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
            return "JSON_SCHEMA", schema if isinstance(schema, str) else _json.dumps(schema, ensure_ascii=False)
        if self.regex is not None:
            return "REGEX", self.regex
        if self.choice is not None:
            return "CHOICE", _json.dumps(list(self.choice), ensure_ascii=False)
        if self.grammar is not None:
            return "GRAMMAR", self.grammar
        return "JSON_OBJECT", ""


class GuidedDecodingParams(StructuredOutputsParams):
    """vLLM's older name."""


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


@dataclass(kw_only=True)
class SamplingParams:
    """vLLM's fields with vLLM's defaults; the last four are invar's. Ranges are checked when a request is submitted."""

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
        _refuse(self, _LACKING)
        if self.n < 1:
            raise InvarError(Status.INVALID, f"SamplingParams.n: wanted 1 or more, found {self.n}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvarError(Status.INVALID, f"SamplingParams.max_tokens: wanted 1 or more, found {self.max_tokens}")
        if self.min_tokens < 0:
            raise InvarError(Status.INVALID, f"SamplingParams.min_tokens: wanted 0 or more, found {self.min_tokens}")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 20:
                raise InvarError(Status.LIMIT, f"SamplingParams.{name}: wanted 0 to 20, found {value}")
        if self.structured_outputs is not None and self.guided_decoding is not None:
            raise InvarError(
                Status.INVALID, "SamplingParams: wanted structured_outputs or guided_decoding, found both"
            )
        if not self.detokenize and self.stop:
            raise InvarError(Status.INVALID, "SamplingParams.stop: wanted none without detokenize, found some")

    @property
    def stop_list(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def structure(self) -> StructuredOutputsParams | None:
        return self.structured_outputs if self.structured_outputs is not None else self.guided_decoding

    def clone(self) -> "SamplingParams":
        return type(self)(**{f.name: getattr(self, f.name) for f in fields(self)})
