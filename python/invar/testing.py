"""Assertions for pytest: two engines, an engine and a trainer, or a server and a receipt agree in every bit. A failure
names the first place of difference: request, token, and the bits of its log-probability."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence as Items
from typing import TYPE_CHECKING, Any

from . import _check
from ._audit.answers import float32_bits
from ._audit.endpoint import Endpoint
from ._errors import InvarError, Status
from .params import SamplingParams
from .receipt import Difference, Receipt, first_difference

if TYPE_CHECKING:
    from .audit import Report
    from .llm import LLM, Prompt
    from .outputs import RequestOutput
    from .trainer import Trainer

Tokens = tuple[Items[int], Items[float]]  # ids, log-probabilities


def assert_same_outputs(wanted: Items[RequestOutput], found: Items[RequestOutput]) -> None:
    """Of generate() or chat(): every token, every bit of its log-probability, and the reason for the end."""
    __tracebackhide__ = True
    wanted, found = _outputs(wanted, "wanted"), _outputs(found, "found")
    if len(wanted) != len(found):
        raise AssertionError(f"wanted {len(wanted)} requests, found {len(found)}")
    failures = []
    for i, (a, b) in enumerate(zip(wanted, found)):
        if a.prompt_token_ids != b.prompt_token_ids:
            raise AssertionError(f"{_name(i, a)}: the prompts differ")
        if len(a.outputs) != len(b.outputs):
            raise AssertionError(f"{_name(i, a)}: wanted {len(a.outputs)} answers, found {len(b.outputs)}")
        for x, y in zip(a.outputs, b.outputs):
            name = _name(i, a, x.index)
            failures += _compare(name, (x.token_ids, x.token_logprobs), (y.token_ids, y.token_logprobs))
            if not failures and (x.finish_reason, x.stop_reason) != (y.finish_reason, y.stop_reason):
                ends = f"wanted {x.finish_reason} ({x.stop_reason}), found {y.finish_reason} ({y.stop_reason})"
                failures.append(f"{name}: the end: {ends}")
    _raise(failures, sum(len(output.outputs) for output in wanted), "answers")


def assert_same_engines(
    a: LLM, b: LLM, prompts: Items[Prompt], sampling_params: SamplingParams | Items[SamplingParams] | None = None
) -> None:
    """Both answer the prompts in the same way. sampling_params: None samples 32 tokens. A request without a seed gets the
    number of its prompt."""
    __tracebackhide__ = True
    from .llm import LLM, prompts_of

    for name, engine in (("a", a), ("b", b)):
        _check.instance(engine, name, LLM)
    prompts = prompts_of(prompts)
    params = _params(prompts, sampling_params)
    wanted = a.generate(prompts, params, use_tqdm=False)
    assert_same_outputs(wanted, b.generate(prompts, params, use_tqdm=False))


def assert_same_logprobs(outputs: Items[RequestOutput], found: Iterable[Items[float]]) -> None:
    """Log-probabilities of each answer's tokens, one row an answer, as a trainer computes them: lists, arrays or
    tensors of float32."""
    __tracebackhide__ = True
    outputs = _outputs(outputs, "outputs")
    answers = [(_name(i, output, x.index), x) for i, output in enumerate(outputs) for x in output.outputs]
    given = enumerate(_check.listing(found, "found", "rows of log-probabilities"))
    rows = [[float(value) for value in _check.floats(row, None, f"found[{i}]", finite=False)] for i, row in given]
    if len(rows) != len(answers):
        raise AssertionError(f"wanted log-probabilities of {len(answers)} answers, found {len(rows)}")
    failures = []
    for (name, x), row in zip(answers, rows):
        if len(row) != len(x.token_ids):
            raise AssertionError(f"{name}: wanted {len(x.token_ids)} log-probabilities, found {len(row)}")
        failures += _compare(name, (x.token_ids, x.token_logprobs), (x.token_ids, row))
    _raise(failures, len(answers), "answers")


def assert_same_trainer(
    llm: LLM, trainer: Trainer, prompts: Items[Prompt], sampling_params: SamplingParams | Items[SamplingParams] | None = None
) -> None:
    """The trainer's log-probabilities of what the engine samples are the engine's."""
    __tracebackhide__ = True
    from .llm import LLM, prompts_of
    from .trainer import Sequence, Trainer

    _check.instance(llm, "llm", LLM)
    _check.instance(trainer, "trainer", Trainer)
    prompts = prompts_of(prompts)
    outputs = llm.generate(prompts, _params(prompts, sampling_params), use_tqdm=False)
    pairs = [(output.prompt_token_ids, x.token_ids) for output in outputs for x in output.outputs]
    scored = trainer.score([Sequence([*prompt, *answer]) for prompt, answer in pairs])
    assert_same_logprobs(outputs, [row[len(prompt) :].tolist() for (prompt, _), row in zip(pairs, scored)])


def assert_same_receipt(
    url: str, receipt: Receipt | str | bytes, *, model: str | None = None, api_key: str | None = None, timeout: float = 300.0
) -> None:
    """A server with OpenAI's /v1/completions, and vLLM's `return_token_ids`, gives a receipt's answer in every bit.
    InvarError: no answer, or fields that the comparison needs are missing."""
    __tracebackhide__ = True
    if not isinstance(receipt, Receipt):
        receipt = Receipt(receipt)
    endpoint = Endpoint(url, model, "completions", api_key, timeout)
    body = {"model": endpoint.model, **_receipt_fields(receipt)}
    status, text = endpoint.call("POST", f"{endpoint.base}/completions", body)
    if status != 200:
        raise InvarError(Status.UNSUPPORTED, f"{endpoint.url}: wanted an answer, found {status}: {text[:300]}")
    choice: dict[str, Any] = json.loads(text)["choices"][0]
    ids, given = choice.get("token_ids"), choice.get("logprobs") or {}
    values = given.get("token_logprobs")
    if ids is None or values is None or len(ids) != len(values):
        missing = "token_ids" if ids is None else "logprobs"
        raise InvarError(Status.UNSUPPORTED, f"{endpoint.url}: the answer has no {missing}: nothing to compare")
    name = f"{endpoint.url}: seed {receipt.seed}"
    failures = _compare(name, (receipt.token_ids, receipt.logprobs), (ids, values))
    if not failures and choice.get("finish_reason") != receipt.finish_reason:
        failures.append(f"{name}: the end: wanted {receipt.finish_reason}, found {choice.get('finish_reason')}")
    _raise(failures, 1, "answers")


def assert_audit(url: str, **options: Any) -> Report:
    """invar.audit(url, ...) finds no answer that differs and no request that fails."""
    __tracebackhide__ = True
    from .audit import run

    report = run(url, **options)
    if not report.equal:
        raise AssertionError(f"{report.summary()}\nfirst: {report.first_difference()}\n{report.table()}")
    return report


# ---- inside


def _outputs(value: Any, what: str) -> list[RequestOutput]:
    from .outputs import RequestOutput

    outputs = _check.listing(value, what, "a list of RequestOutput")
    for i, output in enumerate(outputs):
        _check.instance(output, f"{what}[{i}]", RequestOutput)
    return outputs


def _params(prompts: Items[Any], given: SamplingParams | Items[SamplingParams] | None) -> list[SamplingParams]:
    if given is None:
        given = SamplingParams(max_tokens=32)
    listed = [given] * len(prompts) if isinstance(given, SamplingParams) else _check.listing(given, "sampling_params", "SamplingParams")
    for i, p in enumerate(listed):
        _check.instance(p, f"sampling_params[{i}]", SamplingParams)
    params = [p.clone() for p in listed]
    for i, p in enumerate(params):
        p.seed = i if p.seed is None else p.seed
    return params


def _name(i: int, output: RequestOutput, index: int | None = None) -> str:
    text = output.prompt if output.prompt is not None else str(output.prompt_token_ids)
    shown = repr(text if len(text) <= 40 else text[:40] + "...")
    return f"request {i} ({shown})" if index is None else f"request {i} ({shown}, seed {output.outputs[index].seed}), answer {index}"


def _compare(name: str, wanted: Tokens, found: Tokens) -> list[str]:
    count, first = first_difference(wanted, found)
    if first is None:
        return []
    total = max(len(wanted[0]), len(found[0]))
    return [f"{name}, token {first.position}: {_words(first)} ({count} of {total} tokens differ)"]


def _words(d: Difference) -> str:
    def side(token: int | None, logprob: float | None) -> str:
        if token is None or logprob is None:
            return "the end"
        return f"id {token} logprob {logprob!r} ({float32_bits(logprob)})"

    return f"wanted {side(d.wanted_token, d.wanted_logprob)}, found {side(d.found_token, d.found_logprob)}"


def _raise(failures: list[str], total: int, what: str) -> None:
    __tracebackhide__ = True
    if failures:
        more = f"\n{len(failures)} of {total} {what} differ" if total > 1 else ""
        raise AssertionError(failures[0] + more)


def _receipt_fields(receipt: Receipt) -> dict[str, Any]:
    """A receipt's request as the body of a completion."""
    r = json.loads(receipt.json)["request"]
    if r.get("constraint") is not None:
        raise InvarError(Status.UNSUPPORTED, "receipt: wanted a request without a constraint, found one")
    same = ("max_tokens", "temperature", "top_p", "min_p", "top_k", "repetition_penalty", "presence_penalty",
            "frequency_penalty", "ignore_eos")  # fmt: skip
    body = {name: r[name] for name in same}
    body |= {"prompt": r["prompt_ids"], "seed": int(r["seed"]), "logprobs": 1, "return_token_ids": True}
    if r["logit_bias"]:
        body["logit_bias"] = {str(token): bias for token, bias in r["logit_bias"]}
    for name, value in (("stop", r["stop"]), ("stop_token_ids", r["stop_ids"]), ("min_tokens", r.get("min_tokens"))):
        if value:
            body[name] = value
    return body
