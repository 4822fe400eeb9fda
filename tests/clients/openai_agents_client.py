"""The openai-agents package, unmodified: agents over chats and over responses, with a tool, an output type, streams."""

import asyncio

from recorder import BASE, MODEL, QUESTION, TOO_LONG, expect_too_long, same_as_direct
from support import API_KEY, check, main, skip

try:
    import openai
    import pydantic
    from agents import (Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool,
                        set_tracing_disabled)
except ImportError as error:
    skip(f"openai-agents is not installed ({error})")

set_tracing_disabled(True)


def models():
    """A client is bound to the event loop of one run."""
    client = openai.AsyncOpenAI(base_url=BASE, api_key=API_KEY, max_retries=0)
    return OpenAIChatCompletionsModel(MODEL, client), OpenAIResponsesModel(MODEL, client)


class Sum(pydantic.BaseModel):
    a: int
    b: int


def run(which, question=QUESTION, max_tokens=300, temperature=0.6, **agent):
    async def ask():
        settings = ModelSettings(max_tokens=max_tokens, temperature=temperature, extra_body={"seed": 5}, **agent.pop("settings", {}))
        return await Runner.run(Agent(name="a", model=models()[which], model_settings=settings, **agent), question)

    return asyncio.run(ask())


def test_chat():
    for which in (0, 1):
        r = run(which)
        check(isinstance(r.final_output, str) and r.context_wrapper.usage.output_tokens > 0, r)
        same_as_direct(max_completion_tokens=300, seed=5, temperature=0.6)


def test_stream():
    for which in (0, 1):
        async def ask():
            settings = ModelSettings(max_tokens=300, temperature=0.6, extra_body={"seed": 5})
            r = Runner.run_streamed(Agent(name="a", model=models()[which], model_settings=settings), QUESTION)
            text = ""
            async for event in r.stream_events():
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                    text += event.data.delta
            return text, r.final_output

        text, final = asyncio.run(ask())
        check(text and text == final == run(which).final_output, text, final)


def test_tool():
    for which in (0, 1):
        called = []

        @function_tool
        def add(a: int, b: int) -> int:
            """Adds two numbers."""
            called.append((a, b))
            return a + b

        r = run(which, tools=[add], max_tokens=400, temperature=1.2, tool_use_behavior="stop_on_first_tool",
                settings={"tool_choice": "required"})
        check(called and str(r.final_output) == str(sum(called[0])), called, r.final_output)


def test_output_type():
    for which in (0, 1):
        r = run(which, output_type=Sum, max_tokens=400, temperature=1.2)
        check(isinstance(r.final_output, Sum), r.final_output)


def test_too_long():
    for which in (0, 1):
        error = expect_too_long(openai.BadRequestError, lambda: run(which, TOO_LONG))
        check(error.code == "context_length_exceeded" and error.param == ("messages", "input")[which], error.body)


main(test_chat, test_stream, test_tool, test_output_type, test_too_long)
