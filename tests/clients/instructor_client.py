"""The instructor package, unmodified: pydantic models by tools and by schemas, whole and partial."""

import asyncio

from recorder import BASE, MESSAGES, MODEL, TOO_LONG, direct_digest, expect_too_long, last_digest, last_request, posts
from support import API_KEY, check, main, skip

try:
    import instructor
    import openai
    import pydantic
except ImportError as error:
    skip(f"instructor is not installed ({error})")

MODES = ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA")
ASKED = dict(model=MODEL, messages=MESSAGES, max_tokens=400, seed=5, temperature=0.6)


class Sum(pydantic.BaseModel):
    """The sum of two numbers."""

    a: int
    b: int


def client(mode):
    return instructor.from_openai(openai.OpenAI(base_url=BASE, api_key=API_KEY, max_retries=0), mode=getattr(instructor.Mode, mode))


def test_models():
    for mode in MODES:
        made, raw = client(mode).chat.completions.create_with_completion(response_model=Sum, max_retries=0, **ASKED)
        check(isinstance(made, Sum) and raw.usage.completion_tokens > 0, mode, made)
        first = last_digest()
        again = client(mode).chat.completions.create(response_model=Sum, max_retries=0, **ASKED)
        check(again.model_dump() == made.model_dump(), mode, again, made)
        body = {k: v for k, v in last_request().items() if k not in ("model",)}
        check(last_digest() == first == direct_digest(**body), mode)


def test_parts():
    """The client uses different schemas for partial and whole results."""
    for mode in MODES:
        parts = list(client(mode).chat.completions.create_partial(response_model=Sum, max_retries=0, **ASKED))
        check(posts()[-1][1]["stream"] and isinstance(parts[-1].a, int) and isinstance(parts[-1].b, int), mode, parts)
        body = {k: v for k, v in last_request().items() if k not in ("model", "stream", "stream_options")}
        check(last_digest() == direct_digest(**body), mode)


def test_async():
    async def ask():
        made = instructor.from_openai(openai.AsyncOpenAI(base_url=BASE, api_key=API_KEY, max_retries=0))
        return await asyncio.gather(*(made.chat.completions.create(response_model=Sum, max_retries=0, **ASKED) for _ in range(3)))

    check(len({str(s) for s in asyncio.run(ask())}) == 1)


def test_too_long():
    from instructor.core import InstructorRetryException

    long = ASKED | {"messages": [{"role": "user", "content": TOO_LONG}]}
    for mode in MODES:
        error = expect_too_long((openai.BadRequestError, InstructorRetryException),
                                lambda: client(mode).chat.completions.create(response_model=Sum, max_retries=0, **long))
        check("maximum context length is 2048 tokens" in str(error), mode, error)


main(test_models, test_parts, test_async, test_too_long)
