"""Forms of chats over HTTP, without other packages: a tiny gpt-oss with a template of Harmony's form, and tiny-math with every form of
calls by its flag. Random weights: calls and formats are forced, and channels made likely by biases."""

import json
import os
import pathlib
import subprocess
import tempfile
import urllib.error
import urllib.request

from support import check, main
from upstream import BINARY, TINY_MATH, serving

TINY = pathlib.Path(__file__).resolve().parents[1] / "data" / "families" / "gpt_oss_a"
scratch = tempfile.TemporaryDirectory()

# What a template of Harmony's form does, in words of this test: a system message with the effort, tools as types, channels.
TEMPLATE = """
{%- macro type_of(schema) -%}
    {%- if schema.enum %}{{ schema.enum | map('tojson') | join(' | ') }}
    {%- elif schema.type == 'array' %}{{ type_of(schema['items']) }}[]
    {%- else %}{{ schema.type or 'any' }}{% endif -%}
{%- endmacro -%}
{{- '<|start|>system<|message|>A model of a test. ' + strftime_now('%Y-%m-%d') + '\\nReasoning: ' + (reasoning_effort or 'medium') }}
{{- '\\n# Channels: analysis, commentary, final.<|end|>' }}
{%- set first = messages[0] %}
{%- set instructions = first.content if first.role in ['system', 'developer'] else '' %}
{%- if instructions or tools %}
    {{- '<|start|>developer<|message|>' + instructions }}
    {%- if tools %}
        {{- '\\nnamespace functions {\\n' }}
        {%- for tool in tools %}
            {%- set f = tool.function %}
            {{- 'type ' + f.name + ' = (_: {' }}
            {%- for name, schema in f.parameters.properties.items() %}{{ name + ': ' + type_of(schema) + ', ' }}{% endfor %}
            {{- '}) => any;\\n' }}
        {%- endfor %}
        {{- '}' }}
    {%- endif %}
    {{- '<|end|>' }}
{%- endif %}
{%- set last = namespace(name='') %}
{%- for m in (messages[1:] if first.role in ['system', 'developer'] else messages) %}
    {%- if m.content and '<|channel|>analysis<|message|>' in m.content %}{{ raise_exception('marks in the content') }}{% endif %}
    {%- if m.role == 'assistant' and m.tool_calls %}
        {%- if m.content and m.thinking %}{{ raise_exception('content and thinking next to a call') }}{% endif %}
        {%- if m.content or m.thinking %}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' + (m.content or m.thinking) + '<|end|>' }}
        {%- endif %}
        {%- set call = m.tool_calls[0].function %}
        {%- set last.name = call.name %}
        {{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' + call.arguments | tojson + '<|call|>' }}
    {%- elif m.role == 'tool' %}
        {{- '<|start|>functions.' + last.name + ' to=assistant<|channel|>commentary<|message|>' + m.content | tojson + '<|end|>' }}
    {%- elif m.role == 'assistant' %}
        {%- if m.thinking and loop.last %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}
    {%- else %}
        {{- '<|start|>user<|message|>' + m.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""

QUESTION = [{"role": "user", "content": "x?"}]
DIGIT = {"enum": [1, 2, 3]}


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("add", a=DIGIT, b=DIGIT), tool("say", s={"type": "string", "maxLength": 9})]
ANSWER = {"type": "object", "properties": {"v": DIGIT, "s": {"type": "string", "maxLength": 5}}, "required": ["v", "s"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER}}
MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")


def check_call(name, arguments):
    found = json.loads(arguments)
    good = found.keys() == {"a", "b"} and set(found.values()) <= {1, 2, 3} if name == "add" else isinstance(found["s"], str) and len(found["s"]) <= 9
    check(good, name, arguments)


def post(port, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as e:
        raise AssertionError(e.read().decode()) from None
    if not body.get("stream"):
        return json.loads(text)
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
    return [json.loads(line) for line in lines]


def chat(port, **fields):
    """The choice of an answer, which its stream must equal."""
    body = {"model": "m", "messages": QUESTION, "max_tokens": 200, "temperature": 1.0, "top_k": -1, "seed": 1, "return_token_ids": True, **fields}
    answer = post(port, "/v1/chat/completions", body)
    choice = answer["choices"][0]
    reasoning, content, calls, finish = "", "", {}, None
    for event in post(port, "/v1/chat/completions", body | {"stream": True}):
        for c in event["choices"]:
            delta, finish = c["delta"], c["finish_reason"] or finish
            check((delta.get("reasoning") or "") == (delta.get("reasoning_content") or ""), delta)
            reasoning, content = reasoning + (delta.get("reasoning") or ""), content + (delta.get("content") or "")
            for piece in delta.get("tool_calls") or []:
                calls[piece["index"]] = piece["function"]["name"], piece["function"]["arguments"], piece["id"]
    m = choice["message"]
    whole = [(c["function"]["name"], c["function"]["arguments"]) for c in m.get("tool_calls") or []]
    check([calls[i][:2] for i in sorted(calls)] == whole, calls, m)
    check(reasoning == (m["reasoning"] or "") == (m["reasoning_content"] or "") and content == (m["content"] or ""), reasoning, content, m)
    check(finish == choice["finish_reason"], finish, choice)
    for name, arguments in whole:
        check_call(name, arguments)
    choice["calls"], choice["usage"], choice["invar"] = whole, answer["usage"], answer["invar"]
    return choice


def gpt_oss(name="gpt_oss", template=TEMPLATE):
    made = pathlib.Path(scratch.name) / name
    made.mkdir()
    for file in TINY.iterdir():
        (made / file.name).symlink_to(file)
    (made / "chat_template.jinja").write_text(template)
    tokens = {t["content"]: t["id"] for t in json.loads((TINY / "tokenizer.json").read_text())["added_tokens"]}
    return made, {mark: tokens[mark] for mark in MARKS}


def prompt(port, messages=QUESTION, **fields):
    ids = post(port, "/tokenize", {"messages": messages, "add_special_tokens": False, **fields})["tokens"]
    return post(port, "/detokenize", {"tokens": ids})["prompt"]


def conversations(port):
    """Efforts, and reasoning of earlier turns under each of its names."""
    check("Reasoning: medium\n" in prompt(port), prompt(port))
    for effort in "low", "medium", "high":
        check(f"Reasoning: {effort}\n" in prompt(port, reasoning_effort=effort), effort)
    turn = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}]}
    shown = set()
    for name in "thinking", "reasoning", "reasoning_content":
        shown.add(prompt(port, [*QUESTION, turn | {name: "I add."}, {"role": "tool", "tool_call_id": "c", "content": "3"}], tools=TOOLS))
    check(len(shown) == 1, shown)
    text = shown.pop()
    check("<|channel|>analysis<|message|>I add.<|end|><|start|>assistant to=functions.add<|channel|>commentary json<|message|>"
          '{"a": 1, "b": 2}<|call|><|start|>functions.add to=assistant<|channel|>commentary<|message|>"3"<|end|><|start|>assistant' in text, text)
    check("type add = (_: {a: 1 | 2 | 3, b: 1 | 2 | 3, }) => any;" in text, text)


def ends(port, tokens):
    """<|call|> and <|return|> end an answer, although generation_config.json names neither."""
    for mark in "<|call|>", "<|return|>":
        r = post(port, "/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 9, "logit_bias": {tokens[mark]: 100}})
        check(r["choices"][0]["finish_reason"] == "stop" and r["usage"]["completion_tokens"] == 1, mark, r)
    likely = {tokens["<|channel|>"]: 100}
    r = post(port, "/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 9, "logit_bias": likely})
    check(r["choices"][0]["finish_reason"] == "length" and r["usage"]["completion_tokens"] == 9, r)


def free(port, tokens):
    """Marks at random places: the parts of a stream are those of the whole (chat() compares)."""
    bias = {str(tokens[mark]): b for mark, b in {"<|start|>": 3, "<|channel|>": 4, "<|message|>": 5, "<|end|>": 4}.items()}
    for seed in range(12):
        chat(port, seed=seed, logit_bias=bias, tools=TOOLS if seed % 2 else None, max_tokens=120)


def forced(port, tokens):
    reasoned, ended = 0, 0
    for seed in range(8):
        c = chat(port, seed=seed, tools=TOOLS, tool_choice="required", max_tokens=600, logit_bias={str(tokens["<|end|>"]): 6})
        if c["finish_reason"] == "length":
            continue
        ended += 1
        check(c["finish_reason"] == "tool_calls" and len(c["calls"]) == 1 and c["message"]["content"] is None, c)
        check(tokens["<|constrain|>"] in c["token_ids"], "the call is not in Harmony's form")
        reasoned += bool(c["message"]["reasoning"])
        again = [*QUESTION, c["message"], {"role": "tool", "tool_call_id": c["message"]["tool_calls"][0]["id"], "content": "3"}]
        chat(port, messages=again, tools=TOOLS, max_tokens=3)
    check(ended >= 4 and reasoned, "calls, and with reasoning", ended, reasoned)
    named = {"type": "function", "function": {"name": "say"}}
    c = chat(port, tools=TOOLS, tool_choice=named, max_tokens=600, seed=3, logit_bias={str(tokens["<|end|>"]): 6})
    check(c["finish_reason"] == "length" or [name for name, _ in c["calls"]] == ["say"], c)


def formats(port, tokens):
    """JSON in the final message; next to tools also calls; receipts say so and are replayed."""
    bias, receipts, seen = {str(tokens["<|end|>"]): 6}, [], {"calls": 0, "content": 0, "reasoning": 0}
    for seed in range(16):
        c = chat(port, seed=seed, response_format=FORMAT, tools=TOOLS if seed % 2 else None, max_tokens=600, logit_bias=bias, return_receipt=True)
        if c["finish_reason"] == "length":
            continue
        if not c["calls"]:
            found = json.loads(c["message"]["content"])
            check(found.keys() == {"v", "s"} and found["v"] in (1, 2, 3), found)
        seen["calls"] += bool(c["calls"])
        seen["content"] += not c["calls"]
        seen["reasoning"] += bool(c["message"]["reasoning"])
        receipts.append(c["invar"]["receipt"])
        check(receipts[-1]["request"]["constraint"]["reasoning"] == "optional:openai_gptoss", receipts[-1]["request"]["constraint"])
    check(all(seen.values()), seen)
    kept = pathlib.Path(scratch.name) / "receipts"
    kept.write_text("".join(json.dumps(r) + "\n" for r in receipts))
    ran = subprocess.run([BINARY, "replay", str(kept)], text=True, capture_output=True)
    check(ran.returncode == 0 and "equal" in ran.stdout, ran.stdout, ran.stderr)


def strict(port, tokens):
    bound = [t | {"function": t["function"] | {"strict": True}} for t in TOOLS]
    calls = 0
    for seed in range(10):
        c = chat(port, seed=seed, tools=bound, max_tokens=300, logit_bias={str(tokens["<|end|>"]): 6})
        calls += len(c["calls"])
    check(calls, "no strict call")


def continued(port, tokens):
    """A message that is continued is content; one in its analysis is reasoning."""
    c = chat(port, messages=[*QUESTION, {"role": "assistant", "content": "The"}], continue_final_message=True, add_generation_prompt=False,
             max_tokens=9, logit_bias={str(tokens[mark]): -100 for mark in MARKS})
    check(c["message"]["content"] and not c["message"]["reasoning"], c)


def other_doors(made, port, tokens):
    """Responses and messages have the same parts; batch files and programs the same text."""
    bias = {str(tokens["<|end|>"]): 6}
    c = chat(port, seed=5, response_format=FORMAT, max_tokens=600, logit_bias=bias)
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "m", "messages": QUESTION, "max_tokens": 600, "temperature": 1.0, "top_k": -1, "seed": 5, "response_format": FORMAT, "logit_bias": bias}}
    files = [pathlib.Path(scratch.name) / name for name in ("requests.jsonl", "answers.jsonl")]
    files[0].write_text(json.dumps(line) + "\n")
    files[1].unlink(missing_ok=True)
    subprocess.run([BINARY, "batch", str(made), "-i", str(files[0]), "-o", str(files[1]), "--served-model-name", "m"], check=True, capture_output=True)
    message = json.loads(files[1].read_text())["response"]["body"]["choices"][0]["message"]
    check({k: message[k] for k in ("content", "reasoning")} == {k: c["message"][k] for k in ("content", "reasoning")}, message, c)
    r = post(port, "/v1/responses", {"model": "m", "input": "x?", "max_output_tokens": 600, "temperature": 1.0, "seed": 5,
                                     "text": {"format": {"type": "json_schema", "name": "a", "schema": ANSWER}}})
    check({item["type"] for item in r["output"]} <= {"reasoning", "message"} and r["output"], r)
    r = post(port, "/v1/messages", {"model": "m", "max_tokens": 400, "messages": QUESTION, "tool_choice": {"type": "any"}, "seed": 2, "temperature": 1.0,
                                    "tools": [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS]})
    check({block["type"] for block in r["content"]} <= {"thinking", "tool_use", "text"}, r)
    schema = json.dumps(ANSWER)
    ran = subprocess.run([BINARY, "generate", str(made), "--chat", "-p", "x?", "--json-schema", schema, "--seed", "5", "--max-tokens", "900", "--quiet",
                          "--chat-template-kwargs", '{"reasoning_effort": "low"}'], text=True, capture_output=True)
    check(ran.returncode == 0 and "<|channel|>" in ran.stdout, ran)
    ran = subprocess.run([BINARY, "chat", str(made), "--max-tokens", "40", "--quiet", "--seed", "1"], text=True, capture_output=True, input="a\nb\nc\n")
    check(ran.returncode == 0, ran)


def test_harmony():
    made, tokens = gpt_oss()
    with serving(made, "--served-model-name", "m") as port:
        conversations(port)
        ends(port, tokens)
        free(port, tokens)
        forced(port, tokens)
        formats(port, tokens)
        strict(port, tokens)
        continued(port, tokens)
        other_doors(made, port, tokens)


def test_flags():
    made = pathlib.Path(scratch.name) / "gpt_oss"
    tokens = {t["content"]: t["id"] for t in json.loads((TINY / "tokenizer.json").read_text())["added_tokens"]}
    with serving(made, "--served-model-name", "m", "--reasoning-parser", "none", "--tool-call-parser", "none") as port:
        c = chat(port, seed=1, logit_bias={str(tokens[mark]): 4 for mark in MARKS}, max_tokens=50)
        check(not c["message"]["reasoning"], c)
    ran = subprocess.run([BINARY, "serve", str(made), "--port", "0", "--reasoning-parser", "openai_gptoss", "--tool-call-parser", "hermes"],
                         text=True, capture_output=True, timeout=60)
    check(ran.returncode != 0 and "found hermes with openai_gptoss" in ran.stderr, ran.stderr)


PARSERS = ("glm45", "glm47", "seed_oss", "minimax_m2", "granite", "phi4_mini_json", "hunyuan_a13b", "ernie45", "deepseek_v3", "deepseek_v31", "kimi_k2",
           "pythonic", "llama4_pythonic", "olmo3")


def test_parsers():
    """Forced calls in every form are read back as what the schema says, whole and streamed."""
    for name in PARSERS if os.environ.get("INVAR_TEST_LONG") else PARSERS[::3] + ("minimax_m2", "kimi_k2"):
        with serving(TINY_MATH, "--served-model-name", "m", "--tool-call-parser", name) as port:
            several = 0
            for seed in range(5):
                c = chat(port, seed=seed, tools=TOOLS, tool_choice="required", max_tokens=500, temperature=1.5, parallel_tool_calls=seed % 2 == 0)
                check(c["finish_reason"] == "length" or c["finish_reason"] == "tool_calls", c)
                several += len(c["calls"])
                for i, call in enumerate(c["message"].get("tool_calls") or []):
                    check(name != "kimi_k2" or call["id"] == f"functions.{call['function']['name']}:{i}", call)
            check(several, name)


def decided(port, **fields):
    """The end of the prompt that a question becomes, and the texts of its labels."""
    body = {"model": "m", "input": "1 + 1 = 2", "questions": [{"type": "predicate", "instructions": "It is right."}], "return_receipt": True, **fields}
    answer = post(port, "/v1/decisions", body)
    [a], [labels] = answer["answers"], answer["labels"]
    check(a["type"] == "predicate" and 0 < a["probability"] < 1 and len(set(labels["token_ids"])) == 2, a, labels)
    ids = answer["invar"]["receipt"]["request"]["prompt_ids"]
    return [post(port, "/detokenize", {"tokens": i})["prompt"] for i in (ids, *([i] for i in labels["token_ids"]))]


def test_decisions():
    """The label is the answer's first token: in the channel of answers, behind the reasoning, or behind a plain text."""
    made, _ = gpt_oss("decided")
    with serving(made, "--served-model-name", "m") as port:
        text, yes, no = decided(port)
        check(text.endswith("<|end|><|start|>assistant<|channel|>final<|message|>") and "Statement: It is right." in text, text)
    thinking = pathlib.Path(scratch.name) / "thinking"
    thinking.mkdir()
    for file in pathlib.Path(TINY_MATH).iterdir():
        (thinking / file.name).symlink_to(file)
    (thinking / "chat_template.jinja").unlink()
    (thinking / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}{{ 'assistant:\\n<think>\\n' }}")
    with serving(thinking, "--served-model-name", "m") as port:
        text, yes, no = decided(port)
        check(text.endswith("assistant:\n<think>\n</think>\n\n"), text)
        talk = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
        text = decided(port, input=talk)[0]
        check("user: x\nassistant: y\nuser: Statement: It is right." in text, text)
    with serving(TINY, "--served-model-name", "m") as port:
        text, yes, no = decided(port)
        check(text.startswith("1 + 1 = 2\n\nStatement:") and text.endswith("and nothing else.\n\nAnswer:"), text)
        check(f"Answer {yes.strip()} or {no.strip()}, and" in text, text, yes, no)


main(test_harmony, test_flags, test_parsers, test_decisions)
