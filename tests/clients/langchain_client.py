"""The langchain-openai package, unmodified: chats, streams, tools, structured output, its exception for a prompt that is too long."""

import asyncio

from recorder import BASE, MODEL, QUESTION, TOO_LONG, expect_too_long, same_as_direct
from support import API_KEY, check, main, skip

try:
    import pydantic
    from langchain_core.exceptions import ContextOverflowError
    from langchain_openai import ChatOpenAI, OpenAI
except ImportError as error:
    skip(f"langchain-openai is not installed ({error})")

ASKED = dict(model=MODEL, base_url=BASE, api_key=API_KEY, max_retries=0)
chat = ChatOpenAI(max_tokens=40, seed=5, temperature=0.6, **ASKED)
SAME = dict(max_completion_tokens=40, seed=5, temperature=0.6)


class Sum(pydantic.BaseModel):
    """The sum of two numbers."""

    a: int
    b: int


def test_chat():
    r = chat.invoke(QUESTION)
    check(isinstance(r.content, str) and r.usage_metadata["output_tokens"] > 0, r)
    check(r.response_metadata["finish_reason"] in ("stop", "length"), r)
    same_as_direct(**SAME)
    longer = chat.invoke([("system", "short"), ("human", QUESTION), r, ("human", "And?")])
    check(longer.usage_metadata["input_tokens"] > r.usage_metadata["input_tokens"] + 4)


def test_stream():
    whole = chat.invoke(QUESTION)
    parts = list(chat.stream(QUESTION))
    check("".join(p.content for p in parts) == whole.content and len(parts) > 2, parts)
    same_as_direct(**SAME)


def test_batch():
    async def ask():
        return await chat.abatch([QUESTION] * 4)

    texts = {r.content for r in chat.batch([QUESTION] * 4)} | {r.content for r in asyncio.run(ask())}
    check(len(texts) == 1, texts)


def test_tools():
    forced = ChatOpenAI(max_tokens=400, seed=5, **ASKED).bind_tools([Sum], tool_choice="Sum")
    r = forced.invoke(QUESTION)
    check(r.tool_calls and r.tool_calls[0]["name"] == "Sum" and Sum(**r.tool_calls[0]["args"]), r)
    parts = None
    for part in forced.stream(QUESTION):
        parts = part if parts is None else parts + part
    check(parts.tool_calls[0]["args"] == r.tool_calls[0]["args"], parts)


def test_structured_output():
    for method in ("json_schema", "function_calling"):
        made = ChatOpenAI(max_tokens=400, seed=5, **ASKED).with_structured_output(Sum, method=method)
        first = made.invoke(QUESTION)
        check(isinstance(first, Sum) and made.invoke(QUESTION) == first, method, first)


def test_responses():
    r = ChatOpenAI(max_tokens=40, temperature=0, use_responses_api=True, **ASKED).invoke(QUESTION)
    check(r.text and r.usage_metadata["output_tokens"] > 0, r)


def test_completions():
    r = OpenAI(max_tokens=6, temperature=0, seed=1, **ASKED).invoke("2 + 2 =")
    check(isinstance(r, str) and r, r)
    same_as_direct(path="/v1/completions", prompt="2 + 2 =", max_tokens=6, temperature=0, seed=1, top_p=1)


def test_too_long():
    for use_responses_api in (False, True):
        long = ChatOpenAI(use_responses_api=use_responses_api, **ASKED)
        expect_too_long(ContextOverflowError, lambda: long.invoke(TOO_LONG))
        expect_too_long(ContextOverflowError, lambda: list(long.stream(TOO_LONG)))
    try:  # a control
        ChatOpenAI(temperature=101, **ASKED).invoke(QUESTION)
        check(False, "not refused")
    except Exception as error:
        check(not isinstance(error, ContextOverflowError) and "temperature" in str(error), error)


main(test_chat, test_stream, test_batch, test_tools, test_structured_output, test_responses, test_completions, test_too_long)
