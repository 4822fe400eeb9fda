"""The openai package, unmodified, against a running server with models/tiny-math."""

import json
import math
import re
from typing import Literal, Optional

from support import ADMIN_KEY, API_KEY, URL, call, check, main, post, skip

try:
    import openai
except ImportError:
    skip("the openai package is not installed")

client = openai.OpenAI(base_url=URL + "/v1", api_key=API_KEY, max_retries=0, timeout=120)
MODEL = client.models.list().data[0].id
WILD = {"temperature": 5, "top_p": 1, "extra_body": {"top_k": -1}}  # tiny-math is sure of itself otherwise
QUESTION = [{"role": "user", "content": "What is 12 + 30?"}]


def test_models():
    listed = client.models.list().data
    check(len(listed) == 1 and listed[0].id == MODEL)
    check(client.models.retrieve(MODEL).id == MODEL)
    try:
        client.models.retrieve("another")
        check(False, "another model was found")
    except openai.NotFoundError as e:
        check(e.status_code == 404)


def test_chat():
    r = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=40, seed=5)
    message = r.choices[0].message
    check(message.role == "assistant" and isinstance(message.content, str))
    check(isinstance(message.reasoning_content, str) and message.reasoning == message.reasoning_content)
    check(r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens)
    check(r.system_fingerprint.startswith("iv3-"))
    check(r.invar["seed"] == 5 and r.invar["digest"].startswith("sha256:"))
    again = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=40, seed=5)
    check(again.invar["digest"] == r.invar["digest"])
    more = [*QUESTION, message.model_dump(), {"role": "user", "content": "And?"}]  # with all its fields that are null
    longer = client.chat.completions.create(model=MODEL, messages=more, max_tokens=5)
    check(longer.usage.prompt_tokens > r.usage.prompt_tokens)
    other = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=40, seed=6, **WILD)
    check(other.invar["digest"] != r.invar["digest"], "a control: another seed is another answer")


def test_drawn_seed_repeats():
    r = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=12, **WILD)
    again = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=12, **WILD, seed=r.invar["seed"]
    )
    check(r.invar["digest"] == again.invar["digest"])
    check(r.invar["seed"] < 2**53)


def test_large_seeds():
    asked = dict(model=MODEL, messages=QUESTION, max_tokens=12, **WILD)
    asked["extra_body"] = asked["extra_body"] | {"return_receipt": True}
    for seed in (2**63, 2**64 - 1, 12345678901234567891):
        one = client.chat.completions.create(seed=seed, **asked).invar
        other = client.chat.completions.create(seed=seed - 2**64, **asked).invar
        check(one["seed"] == seed and other["seed"] == seed - 2**64, one["seed"], other["seed"])
        check(one["digest"] == other["digest"], seed)
        check(one["receipt"]["request"]["seed"] == other["receipt"]["request"]["seed"] == str(seed))
    refused("seed", seed=2**64)
    refused("seed", seed=-2**63 - 1)


def test_parameters_are_returned():
    r = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        max_completion_tokens=3,
        temperature=0.7,
        top_p=0.9,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"17": 2},
        stop=["zzz"],
        extra_body={"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1, "ignore_eos": True},
    )
    p = r.invar["parameters"]
    wanted = {
        "max_tokens": 3,
        "temperature": 0.7,
        "top_p": 0.9,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"17": 2},
        "stop": ["zzz"],
        "top_k": 5,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "ignore_eos": True,
    }
    check({k: p[k] for k in wanted} == wanted, p)


def test_chat_stream_is_the_whole():
    arguments = dict(model=MODEL, messages=QUESTION, max_tokens=60, seed=9)
    whole = client.chat.completions.create(**arguments)
    content, reasoning, finish, usage, digest = "", "", None, None, None
    stream = client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True})
    for chunk in stream:
        if chunk.usage:
            check(chunk.choices == [])
            usage = chunk.usage
            continue
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        finish = choice.finish_reason or finish
        digest = getattr(chunk, "invar", {"digest": digest})["digest"]
    message = whole.choices[0].message
    check(content == message.content and reasoning == (message.reasoning_content or ""))
    check(finish == whole.choices[0].finish_reason)
    check(usage.completion_tokens == whole.usage.completion_tokens)
    check(digest == whole.invar["digest"])


def test_chat_logprobs():
    arguments = dict(model=MODEL, messages=QUESTION, max_tokens=8, logprobs=True, top_logprobs=3, seed=1)
    r = client.chat.completions.create(**arguments)
    content = r.choices[0].logprobs.content
    check(len(content) == r.usage.completion_tokens)
    for entry in content:
        check(bytes(entry.bytes).decode() == entry.token)
        check(len(entry.top_logprobs) == 3)
        check(entry.logprob <= entry.top_logprobs[0].logprob <= 0)
    streamed = []
    for chunk in client.chat.completions.create(**arguments, stream=True):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    check([(e.token, e.logprob) for e in streamed] == [(e.token, e.logprob) for e in content])


def test_choices():
    r = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=10, n=3, seed=40, **WILD)
    check([c.index for c in r.choices] == [0, 1, 2])
    check(len({c["digest"] for c in r.invar["choices"]}) == 3)
    for i, choice in enumerate(r.invar["choices"]):
        check(choice["seed"] == 40 + i)
        one = client.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=10, seed=40 + i, **WILD
        )
        check(one.invar["digest"] == choice["digest"])


def test_token_ids():
    r = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=6, seed=2, extra_body={"return_token_ids": True}
    )
    ids, answer = r.prompt_token_ids, r.choices[0].token_ids
    check(len(ids) == r.usage.prompt_tokens and len(answer) == r.usage.completion_tokens)
    again = client.completions.create(
        model=MODEL, prompt=ids, max_tokens=6, seed=2, extra_body={"return_token_ids": True}
    )
    check(again.choices[0].token_ids == answer, "token ids in give the same answer")
    check(again.invar["digest"] == r.invar["digest"])


def test_completions():
    r = client.completions.create(model=MODEL, prompt=["2 + 2 =", "3 + 3 ="], max_tokens=4, temperature=0, logprobs=2)
    check([c.index for c in r.choices] == [0, 1])
    for c in r.choices:
        l = c.logprobs
        check(len(l.tokens) == len(l.token_logprobs) == len(l.top_logprobs) == len(l.text_offset))
        check("".join(l.tokens) == c.text)
        for value, top in zip(l.token_logprobs, l.top_logprobs):
            check(value == max(top.values()))
    text = ""
    for chunk in client.completions.create(model=MODEL, prompt="2 + 2 =", max_tokens=4, temperature=0, stream=True):
        text += chunk.choices[0].text
    check(text == r.choices[0].text)


QUESTIONS = [
    {"type": "predicate", "name": "right", "instructions": "The sum is 42."},
    {"type": "choice", "name": "which", "instructions": "What is the sum?",
     "choices": [{"value": "41"}, {"value": "42", "description": "forty-two"}, {"value": True}, {"value": "true"}]},
    {"type": "score", "instructions": [{"type": "input_text", "text": "How hard is it?"},
                                       {"type": "input_json", "data": {"scale": 3}}],
     "levels": [{"label": "easy"}, {"label": "fair"}, {"label": "hard", "description": "no one knows"}]},
]


def test_decisions():
    if not hasattr(client, "decisions"):
        return
    d = client.decisions.create(model=MODEL, input="What is 12 + 30?", questions=QUESTIONS)
    right, which, hard = d.answers
    check(right.type == "predicate" and right.name == "right" and 0 < right.probability < 1)
    check([o.value for o in which.probabilities] == ["41", "42", True, "true"] and which.name == "which")
    check(abs(sum(o.probability for o in which.probabilities) - 1) < 1e-6)
    best = max(which.probabilities, key=lambda o: o.probability)
    check(which.choice == best.value and which.confidence == best.probability)
    check(hard.name is None and [o.value for o in hard.probabilities] == [0, 1, 2])
    check(abs(hard.score - sum(o.value * o.probability for o in hard.probabilities)) < 1e-6)
    check(d.usage.total_tokens == d.usage.input_tokens + 3 and d.usage.output_tokens == 3)
    labels = d.model_extra["labels"]
    yes, no = labels[0]["logprobs"]
    check(abs(right.probability - 1 / (1 + math.exp(no - yes))) < 1e-6, "the labels' log-probabilities, made to add up to 1")
    check([len(label["token_ids"]) for label in labels] == [2, 4, 3])
    digests = [c["digest"] for c in d.model_extra["invar"]["choices"]]
    again = client.decisions.create(model=MODEL, input="What is 12 + 30?", questions=QUESTIONS[::-1])
    check([c["digest"] for c in again.model_extra["invar"]["choices"]] == digests[::-1], "neighbours change nothing")
    other = client.decisions.create(model=MODEL, input="What is 12 + 31?", questions=QUESTIONS)
    check(all(c["digest"] not in digests for c in other.model_extra["invar"]["choices"]), "a control: another input")


def test_decisions_share_a_prefix():
    if not hasattr(client, "decisions"):
        return
    text = "What is 12 + 30? " * 40
    d = client.decisions.create(model=MODEL, input=text, questions=QUESTIONS * 2, extra_body={"return_receipt": True})
    each = d.usage.input_tokens // 6
    check(d.usage.input_tokens_details.cached_tokens > 4 * (each - 160), "the input is read once", d.usage)
    check(all(c["receipt"] for c in d.model_extra["invar"]["choices"]))


def test_decisions_about_conversations():
    if not hasattr(client, "decisions"):
        return
    talk = [{"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "hi", "prompt_cache_breakpoint": {"mode": "explicit"}},
                                         {"type": "input_json", "data": [{"k": 2}]}]},
            {"type": "custom_tool_call", "call_id": "b", "name": "g", "input": "x y"},
            {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "z"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "done"}], "phase": "final_answer"}]
    d = client.decisions.create(model=MODEL, input=talk, questions=QUESTIONS, prompt_cache_key="k", safety_identifier="s",
                                prompt_cache_options={"mode": "explicit", "ttl": "30m"})
    check([a.type for a in d.answers] == ["predicate", "choice", "score"])
    many = [{"value": str(i)} for i in range(62)]
    wide = client.decisions.create(model=MODEL, input="x", questions=[{"type": "choice", "instructions": "a", "choices": many}])
    check(len({i for i in wide.model_extra["labels"][0]["token_ids"]}) == 62)


def test_decisions_refused():
    if not hasattr(client, "decisions"):
        return
    choice = {"type": "choice", "instructions": "a"}
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]}]
    for body, wanted in (
        ({"questions": []}, "questions: wanted a list of 1 to 400 questions, found 0"),
        ({"questions": [{"type": "x", "instructions": "a"}]}, "questions[0].type: wanted predicate, choice or score"),
        ({"questions": [{"type": "predicate"}]}, "questions[0].instructions: wanted"),
        ({"questions": [choice | {"choices": [{"value": "1"}]}]}, "questions[0].choices: wanted a list of 2 to 255"),
        ({"questions": [choice | {"choices": [{"value": "1"}, {"value": "1"}]}]}, "choices[0] has the same"),
        ({"questions": [choice | {"choices": [{"value": "1"}, {"value": 1}]}]}, "wanted a string or a boolean"),
        ({"questions": [choice | {"levels": []}]}, "questions[0].levels: this field is not known here"),
        ({"questions": [choice | {"choices": [{"value": str(i)} for i in range(255)]}]}, "labels of one token for 62"),
        ({"input": image}, "input_image"),
        ({"input": []}, "input: wanted at least one item"),
        ({"input": [{"type": "function_call_output", "call_id": "z", "output": "3"}]}, "input[0].call_id: no call before"),
        ({"extra_body": {"temperature": 1}}, "temperature"),
    ):
        try:
            client.decisions.create(**({"model": MODEL, "input": "x", "questions": QUESTIONS} | body))
            check(False, body, "was accepted")
        except openai.BadRequestError as e:
            check(wanted in str(e), e)


def test_echo_scores():
    r = client.completions.create(model=MODEL, prompt="2 + 2 = 4", max_tokens=0, echo=True, logprobs=1)
    c = r.choices[0]
    check(c.text == "2 + 2 = 4" and r.usage.completion_tokens == 0 and c.finish_reason == "length")
    check(c.logprobs.token_logprobs[0] is None and all(v <= 0 for v in c.logprobs.token_logprobs[1:]))
    check("".join(c.logprobs.tokens) == c.text)
    for token, offset in zip(c.logprobs.tokens, c.logprobs.text_offset):
        check(c.text[offset:].startswith(token))
    more = client.completions.create(model=MODEL, prompt="2 + 2 = 4", max_tokens=2, echo=True, logprobs=1, seed=1)
    check(more.choices[0].logprobs.token_logprobs[: len(c.logprobs.tokens)] == c.logprobs.token_logprobs)


def test_stop():
    r = client.completions.create(model=MODEL, prompt="1 2 3 4", max_tokens=60, temperature=0)
    stop = r.choices[0].text[5:7]
    cut = client.completions.create(model=MODEL, prompt="1 2 3 4", max_tokens=60, temperature=0, stop=stop)
    check(cut.choices[0].finish_reason == "stop" and cut.choices[0].stop_reason == stop)
    check(r.choices[0].text.startswith(cut.choices[0].text) and stop not in cut.choices[0].text)
    for name in ("include_stop_str_in_output", "no_stop_trim"):
        arguments = dict(model=MODEL, prompt="1 2 3 4", max_tokens=60, temperature=0, stop=stop, extra_body={name: True})
        kept = client.completions.create(**arguments)
        streamed = "".join(c.choices[0].text for c in client.completions.create(stream=True, **arguments) if c.choices)
        check(kept.choices[0].text == cut.choices[0].text + stop == streamed, (kept, streamed))


def post_text(path, body):
    status, answer = call("POST", path, body)
    check(status == 200, answer)
    return answer["prompt"]


def test_response_format():
    try:
        import pydantic
    except ImportError:
        print("SKIPPED: no package pydantic")
        return

    class Part(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=8)
        count: int = pydantic.Field(ge=1, le=99)

    class Plan(pydantic.BaseModel):
        parts: list[Part] = pydantic.Field(min_length=1, max_length=3)
        state: Literal["open", "closed"]
        note: Optional[str] = pydantic.Field(max_length=10)

    for seed in range(6):
        arguments = dict(model=MODEL, messages=QUESTION, max_tokens=500, seed=seed, temperature=1.3)
        r = client.chat.completions.parse(response_format=Plan, **arguments)
        c = r.choices[0]
        check(c.finish_reason == "stop" and isinstance(c.message.parsed, Plan), c)
        again = client.chat.completions.parse(response_format=Plan, **arguments)
        check(again.invar["digest"] == r.invar["digest"] and again.choices[0].message.content == c.message.content)
        with client.chat.completions.stream(response_format=Plan, **arguments) as stream:
            check(stream.get_final_completion().choices[0].message.parsed == c.message.parsed)
        free = client.chat.completions.create(**arguments)
        check(free.invar["digest"] != r.invar["digest"], "the constraint changed nothing")
    r = client.responses.parse(model=MODEL, input="What is 2 + 3?", text_format=Part, max_output_tokens=300)
    check(r.status == "completed" and isinstance(r.output_parsed, Part), r)
    r = client.chat.completions.create(
        model=MODEL, messages=QUESTION, response_format={"type": "json_object"}, max_tokens=400, seed=5
    )
    if r.choices[0].finish_reason == "stop":
        check(isinstance(json.loads(r.choices[0].message.content), dict))


def test_guided_names():
    r = client.completions.create(model=MODEL, prompt="2 + 2 =", extra_body={"guided_choice": ["blue", "red"]})
    check(r.choices[0].text in ("blue", "red") and r.choices[0].finish_reason == "stop")
    r = client.completions.create(model=MODEL, prompt="2 +", extra_body={"structured_outputs": {"regex": "[a-c]{3}-\\d\\d"}})
    check(re.fullmatch("[a-c]{3}-[0-9]{2}", r.choices[0].text), r.choices[0].text)
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}
    r = client.completions.create(model=MODEL, prompt="2 +", max_tokens=40, extra_body={"guided_json": schema})
    check(len(json.loads(r.choices[0].text)) == 2)
    params = {"json_schema": json.dumps(schema), "max_new_tokens": 40}
    r = post("/generate", {"text": ["2 +", "3 +"], "sampling_params": [params, {"regex": "z{2}", "max_new_tokens": 9}]})
    check(len(json.loads(r[0]["text"])) == 2 and r[1]["text"] == "zz", r)
    rules = 'root ::= digit+ ("." digit{2})? "!" # a number\ndigit ::= [0-9]'
    names = ({"guided_grammar": rules}, {"grammar": rules}, {"ebnf": rules}, {"structured_outputs": {"grammar": rules}})
    texts = {client.completions.create(model=MODEL, prompt="2 +", seed=5, extra_body=name).choices[0].text for name in names}
    r = post("/generate", {"text": "2 +", "sampling_params": {"ebnf": rules, "temperature": 0, "max_new_tokens": 16}})
    texts = {text for text in texts if text.endswith("!")} | {r["text"]}
    check(all(re.fullmatch(r"[0-9]+(\.[0-9]{2})?!?", text) for text in texts), texts)


def test_forced_calls():
    def tool(name, **properties):
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    tools = [tool("add", a={"type": "integer"}, b={"type": "integer"}), tool("half", x={"type": "number", "maximum": 9})]
    for seed in range(4):
        arguments = dict(model=MODEL, messages=QUESTION, tools=tools, seed=seed, max_tokens=400, temperature=1.2)
        r = client.chat.completions.create(tool_choice="required", parallel_tool_calls=False, **arguments)
        c = r.choices[0]
        check(c.finish_reason == "tool_calls" and len(c.message.tool_calls) == 1 and c.message.content is None, c)
        f = c.message.tool_calls[0].function
        check(f.name in ("add", "half") and set(json.loads(f.arguments)) == ({"a", "b"} if f.name == "add" else {"x"}))
        named = {"type": "function", "function": {"name": "half"}}
        r = client.chat.completions.create(tool_choice=named, **arguments)
        f = r.choices[0].message.tool_calls[0].function
        check(f.name == "half" and json.loads(f.arguments)["x"] <= 9, f)
    flat = [{"type": "function"} | t["function"] for t in tools]
    named = {"type": "function", "name": "half"}
    r = client.responses.create(model=MODEL, input="What is 2 + 3?", tools=flat, tool_choice=named, max_output_tokens=400)
    calls = [item for item in r.output if item.type == "function_call"]
    check(len(calls) == 1 and calls[0].name == "half" and json.loads(calls[0].arguments)["x"] <= 9, r.output)


def refused(wanted, **arguments):
    arguments = dict(model=MODEL, messages=QUESTION, max_tokens=2) | arguments
    try:
        client.chat.completions.create(**arguments)
    except openai.BadRequestError as e:
        check(e.body["param"] == wanted and e.body["type"] == "invalid_request_error", e.body)
        return
    check(False, f"{wanted} was not refused")


def test_small_temperatures():
    """Clients send them for greedy answers. Control: from 0.0001 on the answer is sampled, and reports it."""
    asked = dict(model=MODEL, messages=QUESTION, max_tokens=12, seed=3)
    greedy = client.chat.completions.create(temperature=0, **asked).invar
    for temperature in (-0.0, 5e-324, 1e-10, 1e-7, 1e-6, 1e-5):
        r = client.chat.completions.create(temperature=temperature, **asked).invar
        check(r["digest"] == greedy["digest"] and r["parameters"]["temperature"] == 0, temperature, r)
    for temperature in (1e-4, 0.01, 2):
        r = client.chat.completions.create(temperature=temperature, **asked).invar
        check(r["parameters"]["temperature"] == temperature, r)
    sampling = [{"temperature": t, "max_new_tokens": 12} for t in (0, 1e-5, 5e-324)]
    answers = post("/generate", {"text": ["2 + 2 ="] * 3, "sampling_params": sampling})
    check(len({str(a["output_ids"]) for a in answers}) == 1, answers)
    status, answer = call("POST", "/v1/completions", {"prompt": "2 +", "temperature": math.nan})
    check(status == 400, answer)


def too_long(create, param, **asked):
    try:
        create(model=MODEL, **asked)
        check(False, "too long a prompt was taken")
    except openai.BadRequestError as e:
        begin = "This model's maximum context length is "
        check(e.code == "context_length_exceeded" and e.type == "invalid_request_error" and e.param == param, e.body)
        check(e.body["message"].startswith(begin), e.body)
        counts = [int(n) for n in re.findall("[0-9]+", e.body["message"])][:4]
        check(counts[1] == counts[2] + counts[3] and counts[1] > counts[0], e.body)


def test_too_long():
    """Short texts of many tokens are counted by the engine, long ones before it."""
    for text in ("12 " * 1500, "12 " * 9000):
        messages = [{"role": "user", "content": text}]
        for stream in (False, True):
            too_long(client.chat.completions.create, "messages", messages=messages, stream=stream)
            too_long(client.completions.create, "prompt", prompt=text, max_tokens=5, stream=stream)
            too_long(client.responses.create, "input", input=text, stream=stream)
        too_long(client.completions.create, "prompt", prompt=["a", text])
        too_long(client.responses.create, "input", input=messages, truncation="auto")
        too_long(client.completions.create, "prompt", prompt=text, max_tokens=0, echo=True)
        status, answer = call("POST", "/generate", {"text": text})
        check(status == 400 and answer["error"]["message"].startswith("This model's maximum context"), answer)
    r = client.completions.create(model=MODEL, prompt="2 + 2 =", max_tokens=100000)
    check(r.usage.completion_tokens > 0, "a limit beyond the context is none")


def test_refusals():
    refused("temperature", temperature=101)
    refused("temperature", temperature="warm")
    refused("n", n=0)
    refused("top_logprobs", top_logprobs=3)
    refused("nonsense", extra_body={"nonsense": 1})
    refused("response_format.type", response_format={"type": "yaml"})
    unsupported = {"name": "x", "schema": {"properties": {"a": {"contains": {}}}}}
    refused("json_schema", response_format={"type": "json_schema", "json_schema": unsupported})
    refused("guided_choice", extra_body={"guided_choice": ["a"], "guided_regex": "a"})
    refused("grammar", extra_body={"grammar": "root ::= x"})
    refused("messages[0].content[0].type", messages=[{"role": "user", "content": [{"type": "image_url"}]}])
    refused("messages[0].role", messages=[{"role": "nobody", "content": "x"}])
    refused("tool_choice", tool_choice="required")
    named = {"type": "function", "function": {"name": "g"}}
    refused("tool_choice", tool_choice=named, tools=[{"type": "function", "function": {"name": "f"}}])
    refused("max_tokens", max_tokens=0)
    try:
        client.chat.completions.create(model="another", messages=QUESTION)
        check(False, "another model answered")
    except openai.NotFoundError as e:
        check(e.body["param"] == "model")


def test_responses():
    r = client.responses.create(model=MODEL, input="What is 1 + 1?", max_output_tokens=60, temperature=0)
    check(r.status in ("completed", "incomplete") and isinstance(r.output_text, str))
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "What is 1 + 1?"}], max_tokens=60, temperature=0
    )
    check(r.invar["digest"] == chat.invar["digest"] and r.output_text == chat.choices[0].message.content)


def test_responses_stream():
    arguments = dict(model=MODEL, input=[{"role": "user", "content": "What is 1 + 1?"}], temperature=0)
    whole = client.responses.create(**arguments)
    names, text, reasoning, last = [], "", "", None
    for event in client.responses.create(**arguments, stream=True):
        check(event.sequence_number == len(names))
        names.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type == "response.reasoning_text.delta":
            reasoning += event.delta
        if event.type in ("response.completed", "response.incomplete"):
            last = event.response
    check(names[:2] == ["response.created", "response.in_progress"] and names[-1] == f"response.{whole.status}")
    check(text == whole.output_text == last.output_text and last.invar["digest"] == whole.invar["digest"])
    check(last.output[0].type == "reasoning" and last.output[0].content[0].text == reasoning)
    with client.responses.stream(**arguments) as stream:
        check(stream.get_final_response().output_text == text)


TOOL = {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}


def test_responses_tools():
    """Items of calls and their outputs are the messages of a chat: the same prompt, the same bits."""
    call_item = {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a": 12}'}
    items = [QUESTION[0], call_item, {"type": "function_call_output", "call_id": "call_1", "output": "42"}]
    asked_call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 12}'}}
    messages = [QUESTION[0], {"role": "assistant", "content": "", "tool_calls": [asked_call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "42"}]
    r = client.responses.create(model=MODEL, input=items, max_output_tokens=20, temperature=0, tools=[{"type": "function"} | TOOL])
    chat = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=20, temperature=0,
                                          tools=[{"type": "function", "function": TOOL}])
    check(r.usage.input_tokens == chat.usage.prompt_tokens and r.invar["digest"] == chat.invar["digest"])
    check(r.tools[0].name == "add" and r.tool_choice == "auto")
    again = client.responses.create(model=MODEL, input=[QUESTION[0], *[o.model_dump() for o in r.output],
                                                        {"role": "user", "content": "And?"}], max_output_tokens=5)
    check(again.usage.input_tokens > r.usage.output_tokens, "what came out goes in")


def test_logprobs_of_responses():
    """Of the tokens after the reasoning: the last ones of those that a chat has."""
    asked = dict(model=MODEL, input="What is 12 + 30?", max_output_tokens=60, include=["message.output_text.logprobs"], top_logprobs=2,
                 extra_body={"seed": 1})
    r = client.responses.create(**asked)
    part = r.output[-1].content[0]
    chat = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "What is 12 + 30?"}], max_tokens=60, seed=1,
                                          logprobs=True, top_logprobs=2)
    wanted = chat.choices[0].logprobs.content
    check(r.invar["digest"] == chat.invar["digest"] and 0 < len(part.logprobs) < len(wanted))
    check([(e.token, e.logprob) for e in part.logprobs] == [(e.token, e.logprob) for e in wanted[-len(part.logprobs):]])
    check(all(len(e.top_logprobs) == 2 for e in part.logprobs))
    check("".join(e.token for e in part.logprobs).startswith(part.text) or r.status == "incomplete", part)
    streamed = []
    for event in client.responses.create(stream=True, **asked):
        if event.type == "response.output_text.delta":
            streamed += [e.token for e in event.logprobs]
        if event.type == "response.output_text.done":
            check([e.token for e in event.logprobs][: len(streamed)] == streamed and event.text == part.text)
    check(streamed, "no log-probabilities while it came")


def test_labels():
    """Fields that frameworks add for themselves and for other servers change no bit."""
    asked = dict(model=MODEL, max_tokens=20, temperature=0)
    said = {"role": "assistant", "content": "42", "annotations": [], "provider_specific_fields": {"refusal": None}, "refusal": None,
            "audio": None, "function_call": None, "tool_calls": None}
    begun = [QUESTION[0], {"role": "assistant", "content": "42"}, {"role": "user", "content": "And?"}]
    plain = client.chat.completions.create(messages=begun, **asked)
    labelled = client.chat.completions.create(
        messages=[QUESTION[0], said, {"role": "user", "content": "And?", "cache_control": {"type": "ephemeral"}}], store=True,
        metadata={"a": "b"}, user="u", service_tier="flex", safety_identifier="s", prompt_cache_key="k",
        parallel_tool_calls=True, verbosity="medium", reasoning_effort="low",
        extra_body={"prompt_cache_retention": "24h", "session_id": "s"}, **asked)
    check(labelled.invar["digest"] == plain.invar["digest"])
    predicted = client.chat.completions.create(messages=begun, prediction={"type": "content", "content": "42 and 43"}, verbosity="low",
                                               **asked)
    check(predicted.invar["digest"] == plain.invar["digest"])  # this template has no verbosity
    refused("verbosity", extra_body={"verbosity": "loud"})
    refused("reasoning_effort", extra_body={"reasoning_effort": "huge"})
    asked = dict(model=MODEL, input="What is 1 + 1?", max_output_tokens=20, temperature=0)
    r = client.responses.create(store=True, include=["reasoning.encrypted_content"], text={"verbosity": "medium"}, metadata={},
                                reasoning={"effort": "low", "summary": "auto"}, prompt_cache_key="k", service_tier="flex", **asked)
    check(r.invar["digest"] == client.responses.create(**asked).invar["digest"] and r.store is False)


def test_forced_call_beside_a_format():
    """A format applies to messages: agents request one together with forced tool calls."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"enum": [{"x": 1}]}}}]
    r = client.chat.completions.create(model=MODEL, messages=QUESTION, tools=tools, tool_choice="required", max_tokens=300, seed=1,
                                       parallel_tool_calls=False, response_format={"type": "json_object"})
    calls = r.choices[0].message.tool_calls
    check(r.choices[0].finish_reason == "tool_calls" and json.loads(calls[0].function.arguments) == {"x": 1}, r)


def test_sampling_of_responses():
    """The fields that a chat has: the same prompt, the same bits."""
    more = {"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1, "stop": ["zz"], "logit_bias": {"5": -1}, "presence_penalty": 0.5}
    asked = dict(model=MODEL, temperature=1.5, extra_body=more | {"seed": 9})
    r = client.responses.create(input="What is 1 + 1?", max_output_tokens=30, **asked)
    chat = client.chat.completions.create(messages=[{"role": "user", "content": "What is 1 + 1?"}], max_tokens=30, **asked)
    check(r.invar["digest"] == chat.invar["digest"])


def test_continue_final_message():
    """A continued message: the prompt ends with its text, and the answer continues identically."""
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=60, temperature=0,
                                           extra_body={"return_token_ids": True})
    text = whole.choices[0].message.content
    begun = [QUESTION[0], {"role": "assistant", "content": text[: len(text) // 2]}]
    continuation = {"continue_final_message": True, "add_generation_prompt": False, "return_token_ids": True}
    r = client.chat.completions.create(model=MODEL, messages=begun, max_tokens=60, temperature=0, extra_body=continuation)
    prompt = post_text("/detokenize", {"tokens": r.prompt_token_ids})
    check(prompt.endswith("assistant\n" + text[: len(text) // 2]), prompt)
    status, tokens = call("POST", "/tokenize", {"messages": begun, "continue_final_message": True})
    check(status == 200 and tokens["tokens"] == r.prompt_token_ids, "without add_generation_prompt it is off")
    again = client.completions.create(model=MODEL, prompt=r.prompt_token_ids, max_tokens=60, temperature=0)
    check(again.invar["digest"] == r.invar["digest"])
    refused("continue_final_message", extra_body={"continue_final_message": True, "add_generation_prompt": True})
    refused("messages[1].content", messages=[QUESTION[0], {"role": "assistant", "content": None}],
            extra_body={"continue_final_message": True})
    thinking = [QUESTION[0], {"role": "assistant", "content": "<think>12 + "}]
    r = client.chat.completions.create(model=MODEL, messages=thinking, max_tokens=60, temperature=0, extra_body=continuation)
    check(r.choices[0].message.reasoning_content, "the text goes on inside of what reasons")


def test_prompt_logprobs_of_streams():
    """Only in the first event of each choice."""
    for create, more in ((client.completions.create, {"prompt": "2 + 2 = 4"}),
                         (client.chat.completions.create, {"messages": QUESTION})):
        arguments = dict(model=MODEL, max_tokens=4, temperature=0, extra_body={"prompt_logprobs": 2}, **more)
        whole = create(**arguments)
        place = (lambda r: r) if "messages" in more else (lambda r: r.choices[0])
        events = [place(e) for e in create(**arguments, stream=True)]
        check(events[0].prompt_logprobs == place(whole).prompt_logprobs and len(events[0].prompt_logprobs) > 3)
        check(not any(hasattr(e, "prompt_logprobs") for e in events[1:]))


def test_tokenizer_routes():
    status, r = call("POST", "/tokenize", {"prompt": "12 + 30"})
    check(status == 200 and r["count"] == len(r["tokens"]), r)
    status, back = call("POST", "/detokenize", {"tokens": r["tokens"]})
    check(status == 200 and back["prompt"] == "12 + 30", back)
    status, info = call("GET", "/tokenizer_info")
    check(status == 200 and {"eos_token", "bos_token", "pad_token", "chat_template"} <= set(info))
    status, r = call("POST", "/tokenize", {"messages": QUESTION})
    check(status == 200 and r["count"] > 5)


def test_metrics():
    status, text = call("GET", "/metrics")
    check(status == 200 and "# TYPE" in text)


def test_admin_needs_its_key():
    for path in ("/pause", "/resume", "/flush_cache", "/abort_request", "/update_weights"):
        status, _ = call("POST", path, {})
        check(status in (401, 403), path, status)
    if ADMIN_KEY:
        status, r = call("POST", "/pause?mode=keep", {}, ADMIN_KEY)
        check(status == 200 and r["paused"], r)
        status, r = call("POST", "/resume", {}, ADMIN_KEY)
        check(status == 200 and not r["paused"], r)
        status, r = call("POST", "/update_weights", {"weight_dir": "/nowhere"}, ADMIN_KEY)
        check(status in (400, 404) and not r["success"], status, r)


def test_unicode():
    text = "naïve 漢字 🙂 \u0000 \"quoted\" \\ \n"
    status, r = call("POST", "/tokenize", {"prompt": text})
    check(status == 200, r)
    status, back = call("POST", "/detokenize", {"tokens": r["tokens"]})
    check(back["prompt"] == text, json.dumps(back))
    r = client.completions.create(model=MODEL, prompt=r["tokens"], max_tokens=1, echo=True, logprobs=0)
    check(r.choices[0].text.startswith(text))
    check(all(v is None or math.isfinite(v) for v in r.choices[0].logprobs.token_logprobs))
    check(any(t.startswith("bytes:") for t in r.choices[0].logprobs.tokens), "parts of characters keep their bytes")


main(*[f for name, f in sorted(globals().items()) if name.startswith("test_")])
