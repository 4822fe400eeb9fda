"""The dspy package, unmodified: its language model by both of its engines, a typed prediction, its exception for a prompt that is too long."""

import os
import tempfile

os.environ["DSPY_CACHEDIR"] = tempfile.mkdtemp()

from recorder import BASE, MESSAGES, QUESTION, TOO_LONG, expect_too_long, last_request, posts, same_as_direct
from support import API_KEY, check, main, skip

try:
    import litellm
    import dspy
except ImportError as error:
    skip(f"dspy is not installed ({error})")


def model(engine, **more):
    settings = dict(max_tokens=60, temperature=0.6, seed=5) | more
    return dspy.LM("openai/tiny-math", api_base=BASE, api_key=API_KEY, cache=False, num_retries=0, engine=engine, **settings)


# dspy sends a schema if litellm's table of models allows it.
litellm.register_model({"openai/tiny-math": {"litellm_provider": "openai", "mode": "chat", "supports_response_schema": True}})
ENGINES = ("lm15", "litellm")


def text_of(answer):
    return answer["text"] if isinstance(answer, dict) else answer


def test_chat():
    for engine in ENGINES:
        lm = model(engine)
        first, second = text_of(lm(QUESTION)[0]), text_of(lm(messages=MESSAGES)[0])
        check(first and first == second, engine, first, second)
        sent = last_request()
        limit = "max_tokens" if "max_tokens" in sent else "max_completion_tokens"
        same_as_direct(**{limit: 60}, temperature=0.6, seed=5)


def test_typed_prediction():
    """The model does not know dspy's format: a schema has to force it."""
    with dspy.context(lm=model("litellm", max_tokens=400), adapter=dspy.JSONAdapter()):
        r = dspy.Predict("question: str -> total: int")(question=QUESTION)
        check(isinstance(r.total, int), r)
        check(last_request()["response_format"]["type"] == "json_schema", last_request())


def test_stream():
    """dspy streams a field of a prediction."""
    with dspy.context(lm=model("litellm", max_tokens=400), adapter=dspy.JSONAdapter()):
        program = dspy.streamify(dspy.Predict("question: str -> total: int"), async_streaming=False)
        parts = list(program(question=QUESTION))
        check(isinstance(parts[-1], dspy.Prediction) and isinstance(parts[-1].total, int), parts)
        check(any(r.get("stream") for _, r, _, _ in posts()), "nothing was streamed")


def test_too_long():
    for engine in ENGINES:
        expect_too_long(dspy.ContextWindowExceededError, lambda: model(engine)(TOO_LONG))
    try:  # a control
        model("litellm", temperature=101)(QUESTION)
        check(False, "not refused")
    except Exception as error:
        check(not isinstance(error, dspy.ContextWindowExceededError) and "temperature" in str(error), repr(error))


main(test_chat, test_typed_prediction, test_stream, test_too_long)
