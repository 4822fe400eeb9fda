#!/usr/bin/env python3
"""Writes tests/data/chat_templates.json: those templates of INVAR_SHARED/golden/chat_templates.json whose models are under a
license that allows it, each with its license; and the names of the others.

Usage: free_templates.py SHARED/golden/chat_templates.json > tests/data/chat_templates.json"""
import json
import sys

APACHE = """tokenizer:mistral_nemo tokenizer:qwen3 cogito:14b dolphin-mixtral:8x7b granite-code:3b granite3-dense:2b
    granite3.1-moe:1b granite3.2-vision:2b granite3.3:2b granite4:350m mistral-small:24b mixtral:8x22b mixtral:8x7b
    nous-hermes2-mixtral:8x7b olmo2:7b openchat:7b qwen2.5-coder:1.5b qwen2.5:0.5b qwen3-coder:30b qwen3-next:80b qwq:32b
    rnj-1:latest sailor2:1b smollm2:135m tinyllama:1.1b yi:6b""".split()
MIT = """deepcoder:14b deepseek-r1:8b deepseek-r1:latest deepseek-v3.1:latest phi3:14b phi3:3.8b phi4-mini-reasoning:3.8b
    phi4-mini:3.8b phi4:14b""".split()


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        whole = json.load(f)
    licenses = {name: "Apache-2.0" for name in APACHE} | {name: "MIT" for name in MIT}
    known = {entry["model"].removeprefix("library/") for entry in whole["templates"]}
    if licenses.keys() - known:
        sys.exit(f"not in the file: {sorted(licenses.keys() - known)}")
    kept, left_out = [], []
    for entry in whole["templates"]:
        name = licenses.get(entry["model"].removeprefix("library/"))
        if name:
            kept.append({"model": entry["model"], "license": name} | entry)
        else:
            left_out.append(entry["model"])
    whole["templates"], whole["left_out"] = kept, sorted(set(left_out))
    json.dump(whole, sys.stdout, ensure_ascii=False, indent=0)
    print()


main()
