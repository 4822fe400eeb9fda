#!/usr/bin/env python3
"""Ids and masks of assistant tokens for test_data.c, from transformers (5.24 was used; pip install transformers).

    chat_masks.py REPOSITORY SHARED > tests/data/chat_masks.json

`cases`: each is a tokenizer (a folder of the repository, a folder of shared/tokenizers, or the file as a string), a chat template
and the members of a line, with what apply_chat_template(return_assistant_tokens_mask=True) gives. `models`: lines for the published tokenizers with their own
templates, which have no such masks: the turns are found by rendering prefixes, prompts and completions are joined as TRL
(SFTTrainer) does it, and prompts of reinforcement learning are what apply_chat_template(add_generation_prompt=True) gives.
"""
import json
import sys

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, decoders, trainers
from transformers import PreTrainedTokenizerFast

LINES = ["<|user|> What is the answer? <|assistant|> The answer is 42.", "caf\u00e9 na\u00efve \u00c5ngstr\u00f6m", "12 + 30 = 42\n\nso"]
SPECIAL = ["<|user|>", "<|assistant|>", "<|end|>"]


def byte_level():
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=310, special_tokens=SPECIAL, show_progress=False,
                                                       initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tok.to_str()


def metaspace():
    tok = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>"] + ["<0x%02X>" % b for b in range(256)] + SPECIAL
    tok.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=340, special_tokens=special, show_progress=False))
    spec = json.loads(tok.to_str())
    spec["added_tokens"] = [a for a in spec["added_tokens"] if not a["content"].startswith("<0x")]
    return json.dumps(spec, ensure_ascii=False)


CHATML = """{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}{% generation %}{{- message.content + '<|im_end|>' }}{% endgeneration %}{{- '\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
TOOLS = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}{% generation %}
{%- if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% if not loop.last %}|{% endif %}
{%- endfor %}<|im_end|>{%- endgeneration %}
{%- else %}{{ message.content }}<|im_end|>{% endif %}
{{ '' }}
{%- endfor %}"""
LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}
        {{- message['content'] | trim + '<|eot_id|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}"""
# No special tokens around the answers: spans begin and end inside of text. The content is whole words.
PLAIN = """{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}
{% endgeneration %}{% else %}{{ m.content }}
{% endif %}{% endfor %}"""
# Spans that begin and end inside of tokens, and after characters that a normalizer joins.
TIGHT = """{% for m in messages %}{% if m.role == 'assistant' %}x{% generation %}{{ m.content }}{% endgeneration %}y{% else %}{{ m.content }}{% endif %}{% endfor %}"""
SMALL = """{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{%- generation -%} {{ m.content }}<|end|> {%- endgeneration -%}{% else %}{{ m.content }}<|end|>{% endif %}
{% endfor %}"""
MACRO = """{% macro turn(m) %}{% generation %}{{ m.content }}<|end|>{% endgeneration %}{% endmacro %}
{%- for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{{ turn(m) }}{% else %}{{ m.content }}{% endif %}{% endfor %}"""


def talk(*turns):
    return [{"role": role, "content": content} for role, content in zip(["user", "assistant"] * len(turns), turns)]


TALKS = [
    talk("What is 17 * 6?", "17 * 6 = 102.\nThe answer is 102."),
    talk("a", "b", "c d", "e  f\n\n", "\ng", " h"),
    [{"role": "system", "content": "Be brief."}] + talk("Na\u00efve caf\u00e9?", "Oui \u2014 caf\u00e9 \u6771\u4eac!", "And?", "No."),
    talk("e\u0301 A\u030angstro\u0308m", "cafe\u0301 au lait, e\u0301", "\u1100\u1161\u11a8", "\uac01 \u1100\u1161\u11a8."),
    talk("emoji \U0001f600", "ok \U0001f600\U0001f3f3\ufe0f\u200d\U0001f308 done", "\u0120\u2581", "\u2581a \u2581 b<|end|>c"),
]
CALLS = {"tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}],
         "messages": [{"role": "user", "content": "2+3"},
                      {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2, "b": 3}}},
                                                                            {"function": {"name": "add", "arguments": {}}}]},
                      {"role": "tool", "content": "5"}, {"role": "assistant", "content": "It is 5."}]}
THINK = {"messages": talk("Why?", "<think>hm</think>\nBecause.")}


def by_prefixes(tok, messages, **more):
    """Ids, and the mask of the assistant's turns: the text that each adds, without white space at its end."""
    render = lambda m, prompt: tok.apply_chat_template(m, tokenize=False, add_generation_prompt=prompt, **more)
    text, spans = render(messages, False), []
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            before, after = render(messages[:i], True), render(messages[: i + 1], False)
            assert after.startswith(before) and text.startswith(after)
            spans.append((len(before), len(after.rstrip(" \t\r\n"))))
    got = tok(text, add_special_tokens=False, return_offsets_mapping=True)
    inside = lambda a, b: any(a < end and b > start for start, end in spans)
    return got["input_ids"], "".join(str(int(inside(a, b))) for a, b in got["offset_mapping"])


def as_trl(tok, prompt, completion):
    """SFTTrainer: the end-of-sequence token after the completion, both tokenized as one text."""
    full = prompt + completion + ("" if completion.endswith(tok.eos_token) else tok.eos_token)
    before, ids = tok(prompt)["input_ids"] if prompt else [], tok(full)["input_ids"]
    assert ids[: len(before)] == before
    return ids, "0" * len(before) + "1" * (len(ids) - len(before))


def model_lines(shared):
    for name, kwargs in [("qwen3", {}), ("llama3_1", {"date_string": "26 Jul 2024"}), ("mistral_nemo", {}), ("gpt2", {})]:
        tok = PreTrainedTokenizerFast.from_pretrained(shared + "/tokenizers/" + name)
        case = lambda kind, line, ids, mask: {"tokenizer": name, "kind": kind, "line": line, "ids": ids, "mask": mask}
        for prompt, completion in [("Q: 2+3?\nA:", " 5"), ("caf\u00e9", "\n\u6771\u4eac \U0001f600"), ("a", " b" + tok.eos_token)]:
            yield case("sft", {"prompt": prompt, "completion": completion}, *as_trl(tok, prompt, completion))
            ids, mask = as_trl(tok, "", prompt)
            yield case("sft", {"text": prompt}, ids, "0" + mask[1:])
        if not tok.chat_template:
            ids = tok("What is 2 + 3?")["input_ids"]
            yield case("rl", {"problem": "What is 2 + 3?", "answer": 5}, ids, "0" * len(ids))
            continue
        talks = [talk("What is 17 * 6?", "17 * 6 = 102.\n"), talk("Na\u00efve \U0001f600?", "Oui \u2014 caf\u00e9 \u6771\u4eac!")]
        for messages in talks + ([] if name == "qwen3" else [talk("a", "b c", "d", "e")]):
            yield case("sft", {"messages": messages}, *by_prefixes(tok, messages, **kwargs))
        for line in [{"problem": "What is 2 + 3?", "answer": "5"}, {"messages": talk("a", "b c", "d")}]:
            messages = line.get("messages") or talk(line["problem"])
            ids = tok.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=True, **kwargs)["input_ids"]
            yield case("rl", line, ids, "0" * len(ids))


def main():
    root, shared = sys.argv[1:]
    own = {"byte_level": byte_level(), "metaspace": metaspace()}
    plan = []
    for lines, template, places in [
            (TALKS, CHATML, ["repository:models/tiny-math", "shared:qwen3", "shared:gpt2"]), (TALKS, PLAIN, ["shared:qwen3", "shared:llama3_1", "own:byte_level"]),
            (TALKS, LLAMA3, ["shared:llama3_1"]), (TALKS, SMALL, ["own:byte_level", "own:metaspace"]),
            (TALKS, MACRO, ["own:byte_level"]), (TALKS[:2], TIGHT, ["own:byte_level", "shared:qwen3", "shared:mistral_nemo"]),
            ([CALLS, THINK], TOOLS, ["repository:models/tiny-math", "shared:qwen3"])]:
        plan += [(place, template, line if isinstance(line, dict) else {"messages": line}) for place in places for line in lines]
    cases = []
    for place, template, line in plan:
        kind, name = place.split(":")
        text = own[name] if kind == "own" else open({"repository": root + "/", "shared": shared + "/tokenizers/"}[kind] + name + "/tokenizer.json").read()
        tok = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text), bos_token="<|begin_of_text|>" if "llama3" in name else None)
        got = tok.apply_chat_template(line["messages"], tools=line.get("tools"), chat_template=template, tokenize=True, return_dict=True,
                                      return_assistant_tokens_mask=True)
        assert got["input_ids"] == tok.encode(tok.apply_chat_template(line["messages"], tools=line.get("tools"), chat_template=template,
                                                                      tokenize=False), add_special_tokens=False)
        cases.append({"tokenizer": place, "template": template, "line": line, "ids": got["input_ids"],
                      "mask": "".join(map(str, got["assistant_masks"]))})
    json.dump({"own": own, "cases": cases, "models": list(model_lines(shared))}, sys.stdout, ensure_ascii=False, separators=(",", ":"))
    print()


main()
