"""The llama-index-llms-openai-like package, unmodified: chats, streams, completions, tools, structured predictions."""

import asyncio

from recorder import BASE, MODEL, QUESTION, TOO_LONG, expect_too_long, same_as_direct
from support import API_KEY, check, main, skip

try:
    import openai
    import pydantic
    from llama_index.core.llms import ChatMessage
    from llama_index.core.prompts import PromptTemplate
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike
except ImportError as error:
    skip(f"llama-index is not installed ({error})")

SAME = dict(max_tokens=40, seed=5, temperature=0.6)


class Sum(pydantic.BaseModel):
    """The sum of two numbers."""

    a: int
    b: int


def model(**more):
    settings = dict(model=MODEL, api_base=BASE, api_key=API_KEY, is_chat_model=True, is_function_calling_model=True,
                    context_window=2048, max_tokens=40, temperature=0.6, additional_kwargs={"seed": 5}, max_retries=0) | more
    return OpenAILike(**settings)


ASKED = [ChatMessage(role="user", content=QUESTION)]


def test_chat():
    r = model().chat(ASKED)
    check(r.message.content and r.raw.usage.completion_tokens > 0, r)
    same_as_direct(**SAME)


def test_stream():
    whole = model().chat(ASKED).message.content
    parts = list(model().stream_chat(ASKED))
    check(len(parts) > 2 and "".join(p.delta or "" for p in parts) == whole == parts[-1].message.content, parts[-1])
    same_as_direct(**SAME)

    async def ask():
        return [part async for part in await model().astream_chat(ASKED)]

    check(asyncio.run(ask())[-1].message.content == whole)


def test_complete():
    text = model(is_chat_model=False).complete("2 + 2 =").text
    check(text)
    same_as_direct(path="/v1/completions", prompt="2 + 2 =", **SAME)


def test_tools():
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    tool = FunctionTool.from_defaults(add)
    llm = model(max_tokens=400)
    r = llm.chat_with_tools([tool], user_msg=QUESTION, tool_required=True)
    calls = llm.get_tool_calls_from_response(r)
    check(calls and calls[0].tool_name == "add" and set(calls[0].tool_kwargs) == {"a", "b"}, r)


def test_structured_prediction():
    for should in (True, False):
        llm = model(max_tokens=400, should_use_structured_outputs=should)
        made = llm.structured_predict(Sum, PromptTemplate("{question}"), question=QUESTION)
        check(isinstance(made, Sum), should, made)


def test_too_long():
    long = [ChatMessage(role="user", content=TOO_LONG)]
    error = expect_too_long(openai.BadRequestError, lambda: model().chat(long))
    check(error.code == "context_length_exceeded" and error.param == "messages", error.body)
    expect_too_long(openai.BadRequestError, lambda: list(model().stream_chat(long)))
    error = expect_too_long(openai.BadRequestError, lambda: model(is_chat_model=False).complete(TOO_LONG))
    check(error.param == "prompt", error.body)


main(test_chat, test_stream, test_complete, test_tools, test_structured_prediction, test_too_long)
