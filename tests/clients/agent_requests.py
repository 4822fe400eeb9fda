"""What Claude Code and Codex CLI send (requests/README.md), replayed whole against a running server with models/tiny-math. Needs no
package."""

import json
import pathlib
import urllib.request

from support import API_KEY, URL, check, main, post

REQUESTS = pathlib.Path(__file__).resolve().parent / "requests"
CLAUDE_HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "interleaved-thinking-2025-05-14,context-management-2025-06-27",
                  "x-app": "cli", "x-api-key": API_KEY}
CODEX_HEADERS = {"Authorization": f"Bearer {API_KEY}", "Accept": "text/event-stream", "originator": "codex_cli_rs", "session_id": "0199"}


def request_of(name):
    return json.loads((REQUESTS / f"{name}.json").read_text())


def events(path, body, headers):
    """The events of a stream, each with its name, and the header that names what was ignored."""
    asked = urllib.request.Request(URL + path, data=json.dumps(body).encode(), headers=headers | {"Content-Type": "application/json"})
    out, name = [], None
    with urllib.request.urlopen(asked, timeout=120) as response:
        ignored = response.headers.get("x-invar-ignored")
        for line in response:
            line = line.decode().rstrip("\n")
            if line.startswith("event: "):
                name = line[7:]
            elif line:
                check(line.startswith("data: ") and json.loads(line[6:])["type"] == name, line)
                out.append(json.loads(line[6:]))
    return out, ignored


def message_of(sent):
    """The message that a client of /v1/messages puts together: one open block at a time, numbered from 0."""
    check(sent[0]["type"] == "message_start" and sent[-1]["type"] == "message_stop", sent[0], sent[-1])
    message, open_at = sent[0]["message"] | {"content": []}, None
    for e in sent:
        if e["type"] == "content_block_start":
            check(open_at is None and e["index"] == len(message["content"]), e)
            open_at = e["index"]
            message["content"].append(e["content_block"] | {"pieces": ""})
        elif e["type"] == "content_block_delta":
            check(e["index"] == open_at, e)
            message["content"][-1]["pieces"] += "".join(e["delta"].get(k, "") for k in ("text", "thinking", "partial_json"))
        elif e["type"] == "content_block_stop":
            check(e["index"] == open_at, e)
            open_at = None
        elif e["type"] == "message_delta":
            message |= e["delta"] | {"usage": message["usage"] | e["usage"], "invar": e["invar"]}
    check(open_at is None)
    return message


def chat(messages, **more):
    return post("/v1/chat/completions", {"messages": messages} | more)


def functions(body):
    return [{"type": "function", "function": {"name": t["name"], "description": t["description"], "parameters": t.get("input_schema", t.get("parameters"))}}
            for t in body["tools"] if t.get("type", "function") == "function"]


def test_claude_code():
    body = request_of("claude_code") | {"seed": 3, "max_tokens": 500}
    sent, ignored = events("/v1/messages?beta=true", body, CLAUDE_HEADERS)
    message = message_of(sent)
    check(ignored == message["invar"]["ignored"] == "tools[2] (web_search_20250305)", ignored)
    check(message["stop_reason"] in ("end_turn", "tool_use", "max_tokens") and message["usage"]["output_tokens"] > 0)
    said = [{"role": "system", "content": [{"type": "text", "text": b["text"]} for b in body["system"]]},
            {"role": "user", "content": [{"type": "text", "text": b["text"]} for b in body["messages"][0]["content"]]}]
    same = chat(said, tools=functions(body), seed=3, max_tokens=500, reasoning_effort="high")
    check(message["invar"]["digest"] == same["invar"]["digest"], "the chat with the same conversation")
    counted = post("/v1/messages/count_tokens?beta=true", {k: body[k] for k in ("model", "messages", "system", "tools", "thinking", "output_config")})
    check(counted["input_tokens"] == same["usage"]["prompt_tokens"], counted)


def test_claude_code_results():
    body = request_of("claude_code_results") | {"seed": 3, "max_tokens": 200}
    sent, ignored = events("/v1/messages?beta=true", body, CLAUDE_HEADERS)
    message = message_of(sent)
    check(ignored == "messages[1].content[1] (redacted_thinking)", ignored)
    calls = [{"id": b["id"], "type": "function", "function": {"name": b["name"], "arguments": json.dumps(b["input"])}}
             for b in body["messages"][1]["content"] if b["type"] == "tool_use"]
    said = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": "What is 12 + 30?"},
            {"role": "assistant", "content": "I compute both.", "reasoning_content": "I run it.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "toolu_1", "content": "42"}, {"role": "tool", "tool_call_id": "toolu_2", "content": "2"},
            {"role": "user", "content": "<system-reminder>Be brief.</system-reminder>"}, {"role": "system", "content": "The user is in a hurry."}]
    same = chat(said, tools=functions(body), seed=3, max_tokens=200, reasoning_effort="low")
    check(message["invar"]["digest"] == same["invar"]["digest"], "results are next to their calls")


def test_claude_code_title():
    body = request_of("claude_code_title") | {"seed": 3}
    message = message_of(events("/v1/messages?beta=true", body, CLAUDE_HEADERS)[0])
    title = json.loads(message["content"][-1]["pieces"])
    check(list(title) == ["title"] and len(title["title"]) <= 20 and message["stop_reason"] == "end_turn", title)
    whole = post("/v1/messages", body | {"stream": False})
    check(whole["content"][-1]["text"] == message["content"][-1]["pieces"] and whole["invar"]["digest"] == message["invar"]["digest"])


def items_of(sent):
    """The items of a stream of /v1/responses: each is done before the next one begins."""
    check([e["sequence_number"] for e in sent] == list(range(len(sent))))
    items, open_at = [], None
    for e in sent:
        if e["type"] == "response.output_item.added":
            check(open_at is None and e["output_index"] == len(items), e)
            open_at = e["output_index"]
        elif e["type"] == "response.output_item.done":
            check(open_at == e["output_index"], e)
            items.append(e["item"])
            open_at = None
        elif "output_index" in e:
            check(open_at == e["output_index"], e)
    check(open_at is None)
    return items


def test_codex():
    body = request_of("codex") | {"seed": 3, "max_output_tokens": 500}
    sent, ignored = events("/v1/responses", body, CODEX_HEADERS)
    last = sent[-1]["response"]
    skipped = "tools[2] (custom), tools[3] (web_search), tools[4] (namespace), tools[5] (image_generation)"
    check(ignored == last["invar"]["ignored"] == skipped, ignored)
    check(items_of(sent) == last["output"] and last["tools"] == body["tools"] and last["usage"]["total_tokens"] > 0)
    said = [{"role": "system", "content": body["instructions"]}, *({"role": m["role"], "content": m["content"][0]["text"]} for m in body["input"])]
    same = chat(said, tools=functions(body), seed=3, max_tokens=500, reasoning_effort="medium", verbosity="low")
    check(last["invar"]["digest"] == same["invar"]["digest"], "the chat with the same conversation")


def test_codex_results():
    body = request_of("codex_results") | {"seed": 1}
    sent, ignored = events("/v1/responses", body, CODEX_HEADERS)
    last = sent[-1]["response"]
    check(ignored == "input[2] (encrypted_content), input[4] (web_search_call)", ignored)
    check(items_of(sent) == last["output"] and last["status"] == "completed", last["status"])
    final = last["output"][-1]
    if final["type"] == "message":
        check(isinstance(json.loads(final["content"][0]["text"])["sum"], int), final)
    else:
        check(final["type"] == "function_call" and "cmd" in json.loads(final["arguments"]), final)


main(test_claude_code, test_claude_code_results, test_claude_code_title, test_codex, test_codex_results)
