"""The openai package, unmodified, against servers whose models write calls as Llama's, Mistral's and Qwen3-Coder do: tiny-math with other
templates and tokens. The answers are forced, or constrained to a text that contains a call: tiny-math was not trained on tools.
INVAR_TEST_LONG=1: twice as many seeds of formats and notes."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import urllib.request

from support import check, main, skip
from upstream import BINARY, derived_model, serving

try:
    import openai
except ImportError:
    skip("the openai package is not installed")

scratch = tempfile.TemporaryDirectory()
TIMES = 2 if os.environ.get("INVAR_TEST_LONG") else 1
TURN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
END = "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TEMPLATES = {
    "llama": TURN + """{{ '{"name": "' + c.function.name + '", "parameters": ' }}{{ c.function.arguments | tojson }}}""" + END,
    "mistral": TURN + "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    "{{ '[TOOL_CALLS][' if loop.first else ', ' }}{{ c.function | tojson }}{{ ']' if loop.last }}" + END,
    # As in Qwen3-Coder's: a macro over a schema's own words, tests of types, filters, calls without JSON.
    "coder": """{% macro rest(schema, known) %}
{%- if schema is mapping %}{%- for key in schema if key not in known %}
{%- set value = schema[key] %}
{{- '\\n<' ~ key ~ '>' ~ (value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string) ~ '</' ~ key ~ '>' }}
{%- endfor %}{%- endif %}
{% endmacro %}
{%- set seen = namespace(tools=0) %}
{%- if tools is defined and tools is iterable and tools | length > 0 %}{{- '<|im_start|>system\\n<tools>' }}
{%- for tool in tools %}{%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
{%- set seen.tools = seen.tools + 1 %}{{- '\\n<function>\\n<name>' ~ tool.name ~ '</name>' }}
{%- for name, schema in tool.parameters.properties | items %}{{- '\\n<parameter>' ~ name ~ rest(schema, ['name']) }}{%- endfor %}
{{- rest(tool.parameters, ['type', 'properties']) ~ '\\n</function>' }}{%- endfor %}{{- '\\n</tools> ' ~ seen.tools ~ '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}{{- '<|im_start|>' ~ m.role ~ '\\n' ~ (m.content if m.content is string else '') }}
{%- if m.tool_calls is defined and m.tool_calls is iterable and m.tool_calls is not mapping %}{%- for call in m.tool_calls %}
{%- set call = call.function if call.function is defined else call %}
{{- '\\n<tool_call>\\n<function=' + call.name + '>\\n' }}
{%- for name, value in call.arguments | items %}
{%- set value = value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string %}
{{- '<parameter=' ~ name ~ '>\\n' ~ value ~ '\\n</parameter>\\n' }}{%- endfor %}{{- '</function>\\n</tool_call>' }}{%- endfor %}{%- endif %}
{{- '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}""",
    "args": TURN + "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}" + END,
}
SPECIAL = ["[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"]
QUESTION = [{"role": "user", "content": "What is 12 + 30?"}]


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


DIGIT = {"enum": [1, 2, 3]}
TOOLS = [tool("add", a=DIGIT, b=DIGIT), tool("half", x=DIGIT)]


def model(name):
    """tiny-math with a template that calls tools, and with additional special tokens of such models."""
    made = derived_model(scratch.name, name)
    for file in ("chat_template.jinja", "tokenizer.json"):
        text = (made / file).read_text()
        (made / file).unlink()
        (made / file).write_text(text)
    (made / "chat_template.jinja").write_text(TEMPLATES[name])
    tokenizer = json.loads((made / "tokenizer.json").read_text())
    first = 1 + max(token["id"] for token in tokenizer["added_tokens"])
    like = next(token for token in tokenizer["added_tokens"] if token["special"])
    tokenizer["added_tokens"] += [like | {"id": first + i, "content": text} for i, text in enumerate(SPECIAL)]
    (made / "tokenizer.json").write_text(json.dumps(tokenizer))
    return made, {text: first + i for i, text in enumerate(SPECIAL)}


def client_of(port):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=120)


def gather(stream):
    """Calls by index and the content of a stream, as assembled by clients."""
    calls, content, finish = {}, "", None
    for event in stream:
        for choice in event.choices:
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for piece in choice.delta.tool_calls or []:
                call = calls.setdefault(piece.index, {"id": None, "name": None, "arguments": ""})
                call["id"] = piece.id or call["id"]
                call["name"] = piece.function.name or call["name"]
                call["arguments"] += piece.function.arguments or ""
    return [calls[i] for i in sorted(calls)], content, finish


def same(whole, streamed):
    return [(c.function.name, c.function.arguments) for c in whole] == [(c["name"], c["arguments"]) for c in streamed]


def check_call(name, arguments):
    check(set(json.loads(arguments)) == ({"a", "b"} if name == "add" else {"x"}), name, arguments)


def forced(client, short_ids, tokens):
    several = 0
    for seed in range(6):
        asked = dict(model=MODEL, messages=QUESTION, tools=TOOLS, seed=seed, max_tokens=600, temperature=1.5,
                     extra_body={"top_k": -1, "return_token_ids": True}, tool_choice="required")
        r = client.chat.completions.create(**asked)
        c = r.choices[0]
        if c.finish_reason == "length":
            continue
        check(c.finish_reason == "tool_calls" and c.message.tool_calls and c.message.content is None, c)
        check((tokens["[TOOL_CALLS]"] in c.token_ids) == short_ids, c.token_ids)  # behind its reasoning
        for call in c.message.tool_calls:
            check_call(call.function.name, call.function.arguments)
            check(bool(re.fullmatch("[0-9A-Za-z]{9}", call.id)) == short_ids, call.id)
        several += len(c.message.tool_calls) > 1
        calls, content, finish = gather(client.chat.completions.create(stream=True, **asked))
        check(same(c.message.tool_calls, calls) and content == "" and finish == "tool_calls", calls)
        # The calls go back through the template.
        conversation = [*QUESTION, c.message.model_dump(exclude_none=True)]
        conversation += [{"role": "tool", "tool_call_id": call.id, "content": "42"} for call in c.message.tool_calls]
        again = client.chat.completions.create(model=MODEL, messages=conversation, tools=TOOLS, max_tokens=3)
        check(again.usage.prompt_tokens > r.usage.prompt_tokens)
    named = {"type": "function", "function": {"name": "half"}}
    r = client.chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS, tool_choice=named, max_tokens=400, seed=1)
    check([call.function.name for call in r.choices[0].message.tool_calls] == ["half"], r)
    one = client.chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS, tool_choice="required", seed=2,
                                         temperature=3, parallel_tool_calls=False, max_tokens=400)
    check(len(one.choices[0].message.tool_calls) == 1, one)
    flat = [{"type": "function"} | t["function"] for t in TOOLS]
    r = client.responses.create(model=MODEL, input="hi", tools=flat, tool_choice="required", max_output_tokens=600)
    calls = [item for item in r.output if item.type == "function_call"]
    check(calls and all(bool(re.fullmatch("[0-9A-Za-z]{9}", call.call_id)) == short_ids for call in calls), r.output)
    return several


def held_to(client, text, wanted, content):
    """With tool_choice "auto": the calls recognized in an answer constrained to `text`."""
    asked = dict(model=MODEL, messages=QUESTION, tools=TOOLS, max_tokens=400, seed=1,
                 extra_body={"structured_outputs": {"choice": [text]}})
    message = client.chat.completions.create(**asked).choices[0].message
    found = [(c.function.name, c.function.arguments) for c in message.tool_calls or []]
    check(found == wanted and (message.content or "") == content, text, message)
    calls, streamed, finish = gather(client.chat.completions.create(stream=True, **asked))
    check(same(message.tool_calls or [], calls) and streamed == content, text, calls, streamed)
    check(finish == ("tool_calls" if wanted else "stop"), finish)


ANSWER = {"type": "object", "properties": {"name": {"enum": ["add", "half", "sum"]}, "value": DIGIT}, "required": ["name", "value"],
          "additionalProperties": False}


def check_answer(text):
    found = json.loads(text)
    check(list(found) == ["name", "value"] and found["name"] in ("add", "half", "sum") and found["value"] in (1, 2, 3), text)


def replays(receipts):
    kinds = {r["request"]["constraint"]["kind"] for r in receipts}
    check(kinds == {"tool_call_or_json", "tool_calls_or_json"}, kinds)
    kept = pathlib.Path(scratch.name) / "receipts"
    kept.write_text("".join(json.dumps(r) + "\n" for r in receipts))
    ran = subprocess.run([BINARY, "replay", str(kept)], text=True, capture_output=True)
    check(ran.returncode == 0 and "equal" in ran.stdout, ran.stdout, ran.stderr)


def beside_format(client, one_at_most):
    """A format with optional tools: calls or a message in the format, whole and streamed; both occur."""
    seen, receipts = {"calls": 0, "message": 0}, []
    formed = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER, "strict": True}}
    asked = dict(model=MODEL, messages=QUESTION, tools=TOOLS, response_format=formed, max_tokens=300, temperature=1.2,
                 extra_body={"top_k": -1, "return_receipt": True})
    for seed in range(6 * TIMES):
        asked |= {"seed": seed, "parallel_tool_calls": seed % 2 == 0}
        r = client.chat.completions.create(**asked)
        c = r.choices[0]
        found = c.message.tool_calls or []
        calls, content, finish = gather(client.chat.completions.create(stream=True, **asked))
        check(same(found, calls) and content == (c.message.content or "") and finish == c.finish_reason, c, calls)
        if c.finish_reason == "length":
            continue
        for call in found:
            check_call(call.function.name, call.function.arguments)
        if found:
            check(c.finish_reason == "tool_calls" and c.message.content is None, c)
            check(len(found) == 1 or not (one_at_most or seed % 2), c)
        else:
            check(c.finish_reason == "stop", c)
            check_answer(c.message.content)
        seen["calls" if found else "message"] += 1
        receipts.append(r.invar["receipt"])
    check(all(seen.values()), seen)
    replays(receipts)
    alone = client.chat.completions.create(**asked, tool_choice="none").choices[0]
    check(not alone.message.tool_calls and "<tool_call>" not in (alone.message.content or ""), alone)
    try:
        client.chat.completions.create(**asked | {"tools": [tool("odd", x={"not": {}})]})
        check(False, "a tool that cannot be called")
    except openai.BadRequestError as e:
        check('parameters of tool "odd": #/properties/x/not' in str(e), e)


def responses_beside_format(client):
    flat = [{"type": "function"} | t["function"] for t in TOOLS]
    text = {"format": {"type": "json_schema", "name": "answer", "schema": ANSWER}}
    seen = set()
    for i in range(5 * TIMES):
        asked = dict(model=MODEL, input=f"What is 12 + {i}?", tools=flat, text=text, max_output_tokens=300, temperature=1.2)
        r = client.responses.create(**asked, extra_body={"seed": i})
        ends = ("response.completed", "response.incomplete")
        stream = client.responses.create(**asked, stream=True, extra_body={"seed": i})
        streamed = next(e.response for e in stream if e.type in ends)
        check([x.type for x in streamed.output] == [x.type for x in r.output] and streamed.output_text == r.output_text, r)
        if r.status != "completed":
            continue
        calls = [x for x in r.output if x.type == "function_call"]
        for call in calls:
            check_call(call.name, call.arguments)
        if not calls:
            check_answer(r.output_text)
        seen.add("calls" if calls else "message")
    check(seen == {"calls", "message"}, seen)


MODEL = "tiny-math"


def test_llama():
    made, tokens = model("llama")
    with serving(made, "--served-model-name", MODEL) as port:
        client = client_of(port)
        check(forced(client, False, tokens) == 0, "several calls in Llama's form")
        first = '{"name": "add", "parameters": {"a": 1.50, "b": 2}}'
        held_to(client, first, [("add", '{"a": 1.50, "b": 2}')], "")
        held_to(client, first + "; " + first, [("add", '{"a": 1.50, "b": 2}')] * 2, "")
        held_to(client, "I call <|python_tag|>" + first, [("add", '{"a": 1.50, "b": 2}')], "I call")
        held_to(client, first + " is it", [], first + " is it")
        held_to(client, '{"name": "Bob", "age": 7}', [], '{"name": "Bob", "age": 7}')
        beside_format(client, True)
        responses_beside_format(client)


def test_mistral():
    made, tokens = model("mistral")
    with serving(made, "--served-model-name", MODEL) as port:
        client = client_of(port)
        check(forced(client, True, tokens) > 0, "never several calls")
        held_to(client, 'So. [TOOL_CALLS] [{"name": "half", "arguments": {"x": 1e2}}, {"name": "add"}]',
                [("half", '{"x": 1e2}'), ("add", "{}")], "So.")
        held_to(client, "[TOOL_CALLS]half[ARGS]{}", [("half", "{}")], "")
        held_to(client, "[TOOL_CALLS] [{]", [], "[TOOL_CALLS] [{]")
        beside_format(client, False)


def test_mistral_args():
    made, tokens = model("args")
    with serving(made, "--served-model-name", MODEL) as port:
        check(forced(client_of(port), True, tokens) > 0, "never several calls")
        r = client_of(port).chat.completions.create(
            model=MODEL, messages=QUESTION, tools=TOOLS, seed=3, max_tokens=300, tool_choice="required",
            stop=["[ARGS]"], extra_body={"return_receipt": True})
        check(r.choices[0].finish_reason == "stop" and "[ARGS]" not in r.choices[0].message.content, r)
        check(r.choices[0].message.content.startswith("[TOOL_CALLS]"), "the token is not text")
        receipts = pathlib.Path(scratch.name) / "receipt"
        receipts.write_text(json.dumps(r.invar["receipt"]) + "\n")
    ran = subprocess.run([BINARY, "replay", str(receipts)], text=True, capture_output=True)
    check(ran.returncode == 0 and "equal" in ran.stdout, ran.stdout, ran.stderr)


def coder_call(name, **arguments):
    """In the spelling of the template."""
    values = {k: v if isinstance(v, str) else json.dumps(v) for k, v in arguments.items()}
    body = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


NOTE = tool("note", text={"type": "string", "maxLength": 30}, tags={"type": "array", "items": {"enum": ["</parameter>", 1]}, "maxItems": 2},
            sure={"type": ["boolean", "null"]}, where={"anyOf": [{"type": "string", "maxLength": 9}, {"$ref": "#/$defs/place"}]})
NOTE["function"]["parameters"]["$defs"] = {"place": {"type": "object", "properties": {"x": DIGIT}, "required": ["x"]}}


def check_note(arguments):
    """By hand what the schema says."""
    check(list(arguments) == ["text", "tags", "sure", "where"], arguments)
    check(isinstance(arguments["text"], str) and len(arguments["text"]) <= 30, arguments)
    check(isinstance(arguments["tags"], list) and len(arguments["tags"]) <= 2, arguments)
    check(all(tag in ("</parameter>", 1) for tag in arguments["tags"]), arguments)
    check(arguments["sure"] in (True, False, None), arguments)
    where = arguments["where"]
    check(where.get("x") in (1, 2, 3) if isinstance(where, dict) else len(where) <= 9, arguments)


def notes(client):
    """Every kind of value, forced, whole and streamed, and back through the template."""
    ended = 0
    for seed in range(4 * TIMES):
        asked = dict(model=MODEL, messages=QUESTION, tools=[NOTE], tool_choice="required", parallel_tool_calls=False, seed=seed,
                     max_tokens=300, temperature=1.2)
        c = client.chat.completions.create(**asked).choices[0]
        if c.finish_reason == "length":
            check(not c.message.tool_calls and "<tool_call>" in c.message.content, c)
            continue
        ended += 1
        check(len(c.message.tool_calls) == 1 and c.message.content is None, c)
        check_note(json.loads(c.message.tool_calls[0].function.arguments))
        calls, content, _ = gather(client.chat.completions.create(stream=True, **asked))
        check(same(c.message.tool_calls, calls) and content == "", calls)
        conversation = [*QUESTION, c.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": "x", "content": "ok"}]
        client.chat.completions.create(model=MODEL, messages=conversation, tools=[NOTE], max_tokens=2)
    check(ended > 2, "few notes have ended")


def raw(port, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def goes_back(client, port):
    """A call is rendered byte for byte from its arguments."""
    asked = dict(model=MODEL, messages=QUESTION, tools=TOOLS, tool_choice="required", seed=3, max_tokens=600, temperature=1.5,
                 extra_body={"return_token_ids": True})
    c = client.chat.completions.create(**asked).choices[0]
    check(c.finish_reason == "tool_calls", c)
    said = raw(port, "/detokenize", {"tokens": c.token_ids})["prompt"]
    calls = "<tool_call>" + said.split("<tool_call>", 1)[1].replace("<|im_end|>", "")
    conversation = [*QUESTION, c.message.model_dump(exclude_none=True)]
    ids = raw(port, "/tokenize", {"messages": conversation, "tools": TOOLS, "add_generation_prompt": False})["tokens"]
    prompt = raw(port, "/detokenize", {"tokens": ids})["prompt"]
    check(calls in prompt, calls, prompt)
    check("<parameter>a\n<enum>[1, 2, 3]</enum>" in prompt and '<required>["a", "b"]</required>' in prompt, prompt)
    check("</tools> 2<|im_end|>" in prompt, prompt)


def test_coder():
    made, tokens = model("coder")
    text = 'a "b"\n\\ </parameter>\n</x> <function='
    with serving(made, "--served-model-name", MODEL) as port:
        client = client_of(port)
        check(forced(client, False, tokens) > 0, "never several calls")
        goes_back(client, port)
        notes(client)
        beside_format(client, False)
        held_to(client, "So.\n" + coder_call("add", a=1, b=2.50), [("add", '{"a": 1, "b": 2.5}')], "So.")
        held_to(client, coder_call("half", x="7 ") + "\n" + coder_call("other", x=text),
                [("half", '{"x": 7}'), ("other", json.dumps({"x": text}))], "")
        held_to(client, coder_call("half", x=1).removeprefix("<tool_call>\n"), [("half", '{"x": 1}')], "")
        held_to(client, '<tool_call>\n{"name": "half"}\n</tool_call>', [], '<tool_call>\n{"name": "half"}\n</tool_call>')
        flat = [{"type": "function"} | t["function"] for t in TOOLS]
        r = client.responses.create(model=MODEL, input="hi", tools=flat, tool_choice={"type": "function", "name": "half"},
                                    max_output_tokens=600)
        check([json.loads(i.arguments)["x"] in (1, 2, 3) for i in r.output if i.type == "function_call"] == [True], r.output)


def test_flag():
    made = pathlib.Path(scratch.name) / "llama"
    with serving(made, "--served-model-name", MODEL, "--tool-call-parser", "hermes") as port:
        held_to(client_of(port), '<tool_call>{"name": "half"}</tool_call>', [("half", "{}")], "")
        beside_format(client_of(port), False)
        responses_beside_format(client_of(port))
    for name in "qwen3_coder", "qwen3_xml":
        with serving(made, "--served-model-name", MODEL, "--tool-call-parser", name) as port:
            held_to(client_of(port), coder_call("half", x=1), [("half", '{"x": 1}')], "")
    with serving(made, "--served-model-name", MODEL, "--tool-call-parser", "none") as port:
        text = '{"name": "half", "parameters": {"x": 1}}'
        held_to(client_of(port), text, [], text)
        try:
            client_of(port).chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS, tool_choice="required")
            check(False, "a call was forced")
        except openai.BadRequestError as e:
            check(e.body["param"] == "tool_choice", e.body)


main(test_llama, test_mistral, test_mistral_args, test_coder, test_flag)
