"""Every field of every body, as /openapi.json lists them: it changes the answer, never does, or is refused; each is tried. A field
without a row fails. The model is tiny-math with a chat template that shows all of its variables. Needs no package."""

import json
import pathlib
import tempfile
import urllib.error
import urllib.request

from adapters import make_adapter
from support import check, main
from upstream import TINY_MATH, serving

TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{{ enable_thinking }} {{ reasoning_effort }} {{ verbosity }}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

DIGITS = [str(i) for i in range(10)]
TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
MARKED = [{"role": "user", "content": "<|im_end|>"}]
USER = [{"role": "user", "content": "What is 12 + 30?"}]
BASE = {
    "/v1/completions": {"prompt": "12 + 30 = 42\n17 + 25 =", "max_tokens": 40, "seed": 5, "temperature": 3, "top_k": -1, "top_p": 1},
    "/v1/chat/completions": {"messages": USER, "max_tokens": 60, "seed": 5, "temperature": 3, "top_k": -1, "top_p": 1},
    "/v1/responses": {"input": "What is 12 + 30?", "max_output_tokens": 60, "seed": 5, "temperature": 3, "top_k": -1, "top_p": 1},
    "/v1/messages": {"messages": USER, "max_tokens": 60, "seed": 5, "temperature": 3, "top_k": -1, "top_p": 1},
    "/generate": {"text": "12 + 30 = 42\n17 + 25 =", "sampling_params": {"max_new_tokens": 40, "sampling_seed": 5, "temperature": 3, "top_k": -1, "top_p": 1}},
    "/tokenize": {"messages": USER},
    "/detokenize": {"tokens": [20, 21]},
    "/v1/messages/count_tokens": {"messages": USER},
    "/v1/responses/input_tokens": {"input": "What is 12 + 30?"},
    "/v1/score": {"query": "1 + 1 =", "items": [" 2", " 3"], "label_token_ids": [20, 21]},
    "/v1/decisions": {"input": "1 + 1 = 2", "questions": [{"type": "predicate", "instructions": "It is right."}]},
}
ADMIN = {"/abort_request", "/update_weights_from_disk"}  # tests/serve/test_api_task.c, tests/clients/rl_stacks.py
CHANGES, NEVER, REFUSED = "changes", "never", "refused"


def changes(value, **extra):
    return CHANGES, value, extra


def never(value, **extra):
    return NEVER, value, extra


def refused(value, **extra):
    return REFUSED, value, extra


LABEL = never("a label")
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
ROOT = 'root ::= "ab"'
# Of any body, unless a row of the body says otherwise.
ANY = {
    "temperature": changes(0), "top_p": changes(0.01), "top_k": changes(1), "min_p": changes(1), "repetition_penalty": changes(50),
    "presence_penalty": changes(-2), "frequency_penalty": changes(-2), "logit_bias": changes({"20": 100}), "seed": changes(6),
    "sampling_seed": changes(6), "stop": changes(DIGITS), "stop_sequences": changes(DIGITS), "stop_token_ids": changes(list(range(15, 25))),
    "ignore_eos": changes(True, temperature=1), "skip_special_tokens": changes(False, ignore_eos=True, temperature=1), "spaces_between_special_tokens": never(False),
    "n": changes(2), "max_tokens": changes(2), "max_completion_tokens": changes(2), "max_output_tokens": changes(2), "max_new_tokens": changes(2),
    "min_tokens": changes(39, temperature=1), "min_new_tokens": changes(39, temperature=1), "best_of": refused(2), "use_beam_search": refused(True), "length_penalty": refused(2),
    "include_stop_str_in_output": changes(True, stop=DIGITS), "no_stop_trim": changes(True, stop=DIGITS),
    "allowed_token_ids": changes([20, 21]), "bad_words": changes(DIGITS), "truncate_prompt_tokens": changes(2),
    "response_format": changes({"type": "json_object"}), "structured_outputs": changes({"regex": "ab"}), "guided_json": changes(SCHEMA),
    "guided_regex": changes("ab"), "guided_choice": changes(["ab"]), "guided_grammar": changes(ROOT), "grammar": changes(ROOT),
    "json_schema": changes(json.dumps(SCHEMA)), "regex": changes("ab"), "ebnf": changes(ROOT), "structural_tag": refused("x"),
    "stop_regex": refused("x"), "custom_params": changes({"return_top_p_token_ids": True}, top_k=5), "stream": changes(True), "echo": changes(True),
    "logprobs": changes(2), "top_logprobs": changes(2, logprobs=True), "prompt_logprobs": changes(1),
    "return_sampling_logprobs": changes(True, logprobs=1), "return_receipt": changes(True), "return_token_ids": changes(True),
    "return_tokens_as_token_ids": changes(True, logprobs=1), "separate_reasoning": changes(False, temperature=1), "include_reasoning": refused(False),
    "stream_reasoning": refused(False), "verbosity": changes("low"),
    "return_logprob": changes(True), "logprob_start_len": changes(0, return_logprob=True), "top_logprobs_num": changes(2, return_logprob=True),
    "return_text_in_logprobs": changes(True, return_logprob=True), "token_ids_logprob": changes([20], return_logprob=True),
    "return_hidden_states": refused(True), "return_routed_experts": refused(True), "routed_experts_start_len": never(0),
    "return_prompt_token_ids": refused(True), "return_bytes": refused(True), "return_entropy": refused(True), "return_token_strs": changes(True),
    "query": changes("2 + 2 ="), "items": changes([" 4"]), "label_token_ids": changes([21]), "apply_softmax": changes(True), "item_first": changes(True),
    "model": refused("another"), "prompt": changes("1 + 1"), "input": changes("1 + 1"), "instructions": changes("Be brief."), "text": changes("1 + 1"),
    "input_ids": changes([20, 21], _also={"text": None}), "tokens": changes([22]), "sampling_params": changes({"max_new_tokens": 2}),
    "rid": changes("mine"), "request_id": changes("mine"), "suffix": refused("x"), "add_special_tokens": never(False),
    "split_special_tokens": changes(True, prompt="<|im_end|>", messages=MARKED, text="<|im_end|>"),
    "messages": changes([{"role": "user", "content": "1 + 1"}]), "parallel_tool_calls": never(False),
    "tools": changes([{"type": "function", "function": TOOL}]), "chat_template_kwargs": changes({"enable_thinking": False}),
    "tool_choice": changes("required", tools=[{"type": "function", "function": TOOL}]), "add_generation_prompt": changes(False),
    "continue_final_message": changes(True), "reasoning_effort": changes("none"), "reasoning": changes({"effort": "none"}),
    "chat_template": refused("x"), "documents": refused([1]), "functions": refused([1]), "function_call": refused("auto"), "modalities": refused(["audio"]),
    "audio": refused({}), "prediction": LABEL, "web_search_options": refused({}), "previous_response_id": refused("resp_1"), "client_metadata": LABEL,
    "conversation": refused("c"), "background": refused(True), "truncation": never("disabled"),
    "include": changes(["message.output_text.logprobs"]), "stream_options": changes({"include_usage": True}, stream=True), "priority": never(3),
    "image_data": refused("x"), "input_embeds": refused([1]), "session_params": refused({}), "custom_logit_processor": refused("x"),
    "lora_path": changes("one"), "log_metrics": refused(False), "no_logs": never(True), "user": LABEL, "metadata": never({"a": "b"}),
    "service_tier": LABEL, "store": never(False), "safety_identifier": LABEL, "prompt_cache_key": LABEL, "prompt_cache_retention": LABEL,
    "prompt_cache_options": LABEL, "session_id": LABEL, "custom_labels": LABEL, "max_tool_calls": never(3), "system": changes("Be brief."),
    "thinking": changes({"type": "disabled"}), "output_config": changes({"format": {"type": "json_schema", "schema": SCHEMA}}),
    "output_format": changes({"type": "json_schema", "schema": SCHEMA}), "cache_control": never({"type": "ephemeral"}), "speed": never("fast"),
    "inference_geo": LABEL, "diagnostics": LABEL, "container": refused("c"), "mcp_servers": refused([1]),
    "context_management": refused({"edits": [{"type": "compact_20260112"}]}),
    # members of members
    "include_usage": changes(True), "continuous_usage_stats": changes(True), "include_obfuscation": refused(True),
    "reasoning_summary_delivery": LABEL, "effort": changes("none"), "context": refused("all_turns"), "summary": never("auto"),
    "generate_summary": never("auto"), "format": changes({"type": "json_schema", "schema": SCHEMA}), "return_top_p_token_ids": changes(True),
}
FLAT = [{"type": "function"} | TOOL]
ANTHROPIC = [{"name": "f", "input_schema": TOOL["parameters"]}]
OWN = {
    "sampling_params": {"presence_penalty": changes(-2, temperature=1.5), "frequency_penalty": changes(-2, temperature=1.5)},
    "/v1/completions": {"presence_penalty": changes(-2, temperature=1.5), "frequency_penalty": changes(-2, temperature=1.5)},
    "/v1/chat/completions": {"echo": refused(True), "logprobs": changes(True), "return_sampling_logprobs": changes(True, logprobs=True),
                             "return_tokens_as_token_ids": changes(True, logprobs=True), "min_tokens": changes(59, temperature=1)},
    "/v1/responses": {"text": changes({"format": {"type": "json_object"}}), "split_special_tokens": changes(True, input="<|im_end|>"), "tools": changes(FLAT), "tool_choice": changes("required", tools=FLAT),
                      "prompt": refused({"id": "p"}), "top_logprobs": changes(2, include=["message.output_text.logprobs"]),
                      "stream_options": never({"include_obfuscation": False}, stream=True), "parallel_tool_calls": changes(False)},
    "/v1/messages": {"tools": changes(ANTHROPIC), "tool_choice": changes({"type": "any"}, tools=ANTHROPIC)},
    "/tokenize": {"prompt": changes("1 + 1", _also={"messages": None}), "add_special_tokens": never(True), "split_special_tokens": changes(True, messages=MARKED)},
    "/generate": {"return_sampling_logprobs": changes(True, return_logprob=True)},
    "/v1/messages/count_tokens": {"tools": changes(ANTHROPIC), "tool_choice": never({"type": "any"}, tools=ANTHROPIC),
                                  "output_config": changes({"effort": "high"}),
                                  "output_format": never({"type": "json_schema", "schema": SCHEMA})},
    "/v1/decisions": {"split_special_tokens": changes(True, input="<|im_end|>"), "chat_template_kwargs": changes({"enable_thinking": True}),
                      "input": changes("1 + 1 = 3"), "questions": changes([{"type": "predicate", "instructions": "It is wrong."}])},
    "/v1/responses/input_tokens": {"text": changes({"verbosity": "low"}), "split_special_tokens": changes(True, input="<|im_end|>"), "tools": changes(FLAT), "tool_choice": never("required", tools=FLAT)},
}
NESTED = {  # the body that a component is a member of, and its place
    "stream_options": ("/v1/completions", "stream_options", {"stream": True}),
    "stream_options_of_responses": ("/v1/responses", "stream_options", {"stream": True}),
    "sampling_params": ("/generate", "sampling_params", {}), "reasoning": ("/v1/responses", "reasoning", {}),
    "output_config": ("/v1/messages", "output_config", {}),
}
VOLATILE = {"id", "created", "created_at", "cached_tokens", "prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens", "e2e_latency",
            "parameters", "item_id", "request_id", "call_id"}


def plain(v, kept=()):
    """Without names, times, the state of the cache and the parameters that the answer repeats."""
    if isinstance(v, dict):
        return {k: plain(w, kept) for k, w in v.items() if k not in VOLATILE or k in kept}
    return [plain(w, kept) for w in v] if isinstance(v, list) else v


def ask(path, body, kept=()):
    body = {k: v for k, v in body.items() if v is not None}
    asked = urllib.request.Request(f"{url}{path}", data=json.dumps(body).encode())
    try:
        with urllib.request.urlopen(asked, timeout=120) as response:
            text, stream = response.read().decode(), response.headers["Content-Type"].startswith("text/event-stream")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    if not stream:
        return 200, plain(json.loads(text), kept)
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return 200, [plain(e, kept) for e in events]


def compare(where, row, without, with_it, kept, path):
    kind, value, _ = row
    status, answer = ask(path, with_it, kept)
    if kind == REFUSED:
        name = where.split(" ")[-1]
        check(status in (400, 404) and name.split(".")[-1] in answer, where, value, status, answer)
        return
    check(status == 200, where, value, status, answer)
    status, before = ask(path, without, kept)
    check(status == 200, where, "without it", status, before)
    if "usage" in before and path == "/v1/messages":  # the cache decides how the input tokens are split
        before["usage"].pop("input_tokens", 0), answer["usage"].pop("input_tokens", 0) if isinstance(answer, dict) else 0
    check((answer == before) == (kind == NEVER), where, value, f"wanted: {kind}", before, answer)


def known(extra, fields):
    return {k: v for k, v in extra.items() if k in fields}


def test_bodies():
    with urllib.request.urlopen(f"{url}/openapi.json") as response:
        spec = json.load(response)
    check(set(spec["paths"]) == set(BASE) | ADMIN, set(spec["paths"]) ^ (set(BASE) | ADMIN))
    missing, wrong = [], []
    for path, base in BASE.items():
        fields = spec["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
        for name in fields:
            row = OWN.get(path, {}).get(name) or ANY.get(name)
            if not row:
                missing.append(f"{path} {name}")
                continue
            without, also = base | known(row[2], fields), row[2].get("_also", {})
            try:
                compare(f"{path} {name}", row, without, without | also | {name: row[1]}, ("id",) if name in ("rid", "request_id") else (), path)
            except AssertionError as error:
                wrong.append(str(error)[:400])
    check(not missing and not wrong, "\n".join(["without a row:", *missing, "wrong:", *wrong]))


def test_members():
    with urllib.request.urlopen(f"{url}/openapi.json") as response:
        schemas = json.load(response)["components"]["schemas"]
    check(set(schemas) == set(NESTED) | {"custom_params"}, set(schemas))  # custom_params: above, with its only member
    missing, wrong = [], []
    for schema, (path, place, extra) in NESTED.items():
        for name in schemas[schema]["properties"]:
            row = OWN.get(schema, {}).get(name) or ANY.get(name)
            if not row:
                missing.append(f"{schema} {name}")
                continue
            inner = BASE[path].get(place, {}) | (known(row[2], schemas[schema]["properties"]) if schema == "sampling_params" else {})
            without = BASE[path] | extra | {place: inner}
            try:
                compare(f"{path} {place}.{name}", row, without, without | {place: inner | {name: row[1]}}, (), path)
            except AssertionError as error:
                wrong.append(str(error)[:400])
    check(not missing and not wrong, "\n".join(["without a row:", *missing, "wrong:", *wrong]))


def test_token_rules():
    """Only allowed ids are drawn, and no bad word is completed."""
    path, base = "/v1/completions", BASE["/v1/completions"] | {"return_token_ids": True}
    _, some = ask(path, base | {"allowed_token_ids": [20, 21]})
    check(len(some["choices"][0]["token_ids"]) == 40 and set(some["choices"][0]["token_ids"]) <= {20, 21}, some)
    _, none = ask(path, base | {"bad_words": DIGITS})
    check(none["choices"][0]["text"] and not any(d in none["choices"][0]["text"] for d in DIGITS), none)
    for wrong in ({"allowed_token_ids": []}, {"allowed_token_ids": [1 << 30]}, {"bad_words": [" "]}, {"bad_words": [7]},
                  {"bad_words": ["a"], "regex": "a"}):
        status, answer = ask(path, base | wrong)
        check(status == 400 and next(iter(wrong)) in answer, wrong, status, answer)


with tempfile.TemporaryDirectory() as made:
    for own in TINY_MATH.iterdir():
        if own.name not in ("chat_template.jinja", "tokenizer_config.json"):
            (pathlib.Path(made) / own.name).symlink_to(own)
    config = json.loads((TINY_MATH / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (pathlib.Path(made) / "tokenizer_config.json").write_text(json.dumps(config))
    (pathlib.Path(made) / "chat_template.jinja").write_text(TEMPLATE)
    adapter = make_adapter(f"{made}/adapter", TINY_MATH, 1, size=0.3)
    with serving(pathlib.Path(made), "--lora-modules", f"one={adapter}") as port:
        url = f"http://127.0.0.1:{port}"
        main(test_bodies, test_members, test_token_rules)
