"""The litellm package, unmodified: its routes to OpenAI's servers and to vLLM's, chats, streams, tools, errors."""

import asyncio
import json

from recorder import BASE, MESSAGES, TOO_LONG, direct_digest, expect_too_long, last_digest, same_as_direct
from support import API_KEY, check, main, skip

try:
    import litellm
except ImportError:
    skip("the litellm package is not installed")

ROUTES = ("openai/tiny-math", "hosted_vllm/tiny-math")
ASKED = dict(messages=MESSAGES, api_base=BASE, api_key=API_KEY, max_tokens=40, seed=5, num_retries=0)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}


def test_chat():
    for model in ROUTES:
        r = litellm.completion(model=model, **ASKED)
        check(isinstance(r.choices[0].message.content, str) and r.usage.completion_tokens > 0, r)
        check(r.choices[0].message.reasoning_content, "the reasoning is lost")
        same_as_direct(max_tokens=40, seed=5)


def test_stream():
    for model in ROUTES:
        whole = litellm.completion(model=model, **ASKED)
        parts = list(litellm.completion(model=model, stream=True, stream_options={"include_usage": True}, **ASKED))
        text = "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
        check(text == whole.choices[0].message.content, text, whole)
        check(parts[-1].usage.completion_tokens == whole.usage.completion_tokens, parts[-1])
        built = litellm.stream_chunk_builder(parts)
        check(built.choices[0].message.content == text and built.choices[0].finish_reason == whole.choices[0].finish_reason)
        same_as_direct(max_tokens=40, seed=5)


def test_async():
    async def ask():
        return await asyncio.gather(*(litellm.acompletion(model=ROUTES[0], **ASKED | {"seed": s}) for s in range(4)))

    texts = [r.choices[0].message.content for r in asyncio.run(ask())]
    check(texts == [litellm.completion(model=ROUTES[0], **ASKED | {"seed": s}).choices[0].message.content for s in range(4)])


def test_tools_and_formats():
    for model in ROUTES:
        r = litellm.completion(model=model, tools=[TOOL], tool_choice="required", **ASKED | {"max_tokens": 400})
        calls = r.choices[0].message.tool_calls
        check(calls and calls[0].function.name == "add" and set(json.loads(calls[0].function.arguments)) == {"a", "b"}, r)
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        r = litellm.completion(model=model, response_format=form, **ASKED | {"max_tokens": 300})
        check(isinstance(json.loads(r.choices[0].message.content)["n"], int), r)


def test_completions():
    r = litellm.text_completion(model="text-completion-openai/tiny-math", prompt="2 + 2 =", max_tokens=4, temperature=0, seed=1,
                                api_base=BASE, api_key=API_KEY)
    check(r.choices[0].text)
    check(last_digest() == direct_digest("/v1/completions", prompt="2 + 2 =", max_tokens=4, temperature=0, seed=1))


def test_too_long():
    asked = ASKED | {"messages": [{"role": "user", "content": TOO_LONG}]}
    for model in ROUTES:
        expect_too_long(litellm.ContextWindowExceededError, lambda: litellm.completion(model=model, **asked))
        expect_too_long(litellm.ContextWindowExceededError, lambda: list(litellm.completion(model=model, stream=True, **asked)))
    try:  # a control: other refusals are another class
        litellm.completion(model=ROUTES[0], temperature=-1, **ASKED)
        check(False, "not refused")
    except litellm.BadRequestError as error:
        check(not isinstance(error, litellm.ContextWindowExceededError) and "temperature" in str(error), error)


main(test_chat, test_stream, test_async, test_tools_and_formats, test_completions, test_too_long)
