"""The pydantic-ai package, unmodified: its agents over chats and over responses, with tools, outputs, streams."""

import asyncio

from recorder import BASE, MODEL, QUESTION, TOO_LONG, expect_too_long, posts, same_as_direct
from support import API_KEY, check, main, skip

try:
    import pydantic
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.exceptions import ModelHTTPError
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
except ImportError as error:
    skip(f"pydantic-ai is not installed ({error})")

provider = OpenAIProvider(base_url=BASE, api_key=API_KEY)
chat = OpenAIChatModel(MODEL, provider=provider)
responses = OpenAIResponsesModel(MODEL, provider=provider)
SETTINGS = {"max_tokens": 60, "seed": 5, "temperature": 0.6}
SAME = dict(max_completion_tokens=60, seed=5, temperature=0.6)


class Sum(pydantic.BaseModel):
    a: int
    b: int


def test_chat():
    r = Agent(chat, model_settings=SETTINGS).run_sync(QUESTION)
    check(isinstance(r.output, str) and r.output, r)
    check(r.usage.output_tokens > 0, r.usage)
    same_as_direct(**SAME)


def test_stream():
    agent = Agent(chat, model_settings=SETTINGS)

    async def ask():
        async with agent.run_stream(QUESTION) as r:
            return [part async for part in r.stream_text(delta=True, debounce_by=None)]

    parts = asyncio.run(ask())
    check(len(parts) > 1 and "".join(parts).strip() == agent.run_sync(QUESTION).output.strip(), parts)
    same_as_direct(**SAME)


def test_outputs():
    for model in (chat, responses):
        for output in (NativeOutput(Sum), ToolOutput(Sum)):
            agent = Agent(model, output_type=output, model_settings={"max_tokens": 400, "temperature": 0.6}, retries=0)
            r = agent.run_sync(QUESTION)
            check(isinstance(r.output, Sum), model, r.output)


def test_tools():
    """The first request must call; the second contains the call's result."""
    called = []
    agent = Agent(chat, model_settings={"max_tokens": 400, "seed": 5, "temperature": 0.6})

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        called.append((a, b))
        return a + b

    def forced(ctx):
        return {"tool_choice": "required" if not called else "none"}

    try:
        r = agent.run_sync(QUESTION, model_settings=forced)
    except TypeError as error:
        check(False, "settings that depend on the run", error)
    check(called and isinstance(r.output, str), called, r)
    sent = posts()[-1][1]["messages"]
    results = [m["content"] for m in sent if m["role"] == "tool"]  # calls of one message run side by side, in any order
    check(sent[-1]["role"] == "tool" and sorted(results) == sorted(str(a + b) for a, b in called), sent)


def test_too_long():
    for model in (chat, responses):
        error = expect_too_long(ModelHTTPError, lambda: Agent(model).run_sync(TOO_LONG))
        check(error.status_code == 400 and error.body["code"] == "context_length_exceeded", error)


main(test_chat, test_stream, test_outputs, test_tools, test_too_long)
