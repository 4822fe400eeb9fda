"""The inspect-ai package, unmodified: its providers for servers like this one, an evaluation, its stop reason for a prompt that is too long."""

import asyncio
import json
import os
import tempfile

from recorder import BASE, QUESTION, TOO_LONG, posts, same_as_direct
from support import API_KEY, check, main, skip

os.environ |= {"INVAR_API_KEY": API_KEY, "INVAR_BASE_URL": BASE, "VLLM_API_KEY": API_KEY, "SGLANG_API_KEY": API_KEY,
               "INSPECT_DISPLAY": "none"}
try:
    from inspect_ai import Task, eval as evaluate
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, ResponseSchema, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate
    from inspect_ai.tool import ToolFunction, ToolInfo, ToolParams
    from inspect_ai.util import JSONSchema
except ImportError as error:
    skip(f"inspect-ai is not installed ({error})")

PROVIDERS = ("openai-api/invar/tiny-math", "vllm/tiny-math", "sglang/tiny-math")
CONFIG = dict(max_tokens=60, seed=5, temperature=0.6, max_retries=0)


def ask(provider, text=QUESTION, tools=(), tool_choice=None, **config):
    async def run():
        async with get_model(provider, base_url=BASE, config=GenerateConfig(**CONFIG | config), memoize=False) as model:
            return await model.generate(text, tools=list(tools), tool_choice=tool_choice)

    return asyncio.run(run())


def test_chat():
    for provider in PROVIDERS:
        r = ask(provider)
        check(r.completion and r.usage.output_tokens > 0 and r.stop_reason in ("stop", "max_tokens"), provider, r)
        same_as_direct(max_tokens=60, seed=5, temperature=0.6)


def test_stream():
    """The client joins the parts of a stream."""
    async def run():
        async with get_model(PROVIDERS[0], base_url=BASE, config=GenerateConfig(**CONFIG), memoize=False, stream=True) as model:
            return await model.generate(QUESTION)

    r = asyncio.run(run())
    check(posts()[-1][1].get("stream") is True and r.completion == ask(PROVIDERS[0]).completion, r)


def test_tools_and_formats():
    tool = ToolInfo(name="add", description="adds", parameters=ToolParams(
        properties={"a": JSONSchema(type="integer"), "b": JSONSchema(type="integer")}, required=["a", "b"]))
    for provider in PROVIDERS:
        r = ask(provider, tools=[tool], tool_choice=ToolFunction("add"), max_tokens=400)
        calls = r.message.tool_calls
        check(calls and calls[0].function == "add" and set(calls[0].arguments) == {"a", "b"}, provider, r)
    schema = JSONSchema(type="object", properties={"n": JSONSchema(type="integer")}, required=["n"], additionalProperties=False)
    r = ask(PROVIDERS[0], response_schema=ResponseSchema(name="answer", json_schema=schema), max_tokens=400)
    check(isinstance(json.loads(r.completion)["n"], int), r)


def test_evaluation():
    samples = [Sample(input=f"What is {a} + {a + 3}?", target=str(2 * a + 3)) for a in range(2, 10)]
    logs = []
    for _ in range(2):
        logs += evaluate(Task(dataset=samples, solver=generate(), scorer=includes()), model=PROVIDERS[0], model_base_url=BASE,
                         log_dir=scratch.name, max_tokens=200, seed=1, temperature=0.6)
    check([log.status for log in logs] == ["success"] * 2, logs)
    first, second = ([s.output.completion for s in log.samples] for log in logs)
    check(first == second and logs[0].results.scores[0].metrics["accuracy"].value > 0.5, first, second)


def test_too_long():
    for provider in PROVIDERS:
        r = ask(provider, TOO_LONG)
        check(posts()[-1][2] == 400 and r.stop_reason == "model_length", provider, r)


scratch = tempfile.TemporaryDirectory()
main(test_chat, test_stream, test_tools_and_formats, test_evaluation, test_too_long)
