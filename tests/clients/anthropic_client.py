"""The anthropic package, unmodified, against a running server with models/tiny-math: /v1/messages whole and as events."""

import json
import urllib.request

from support import API_KEY, URL, check, main, post, skip

try:
    import anthropic
    import pydantic
except ImportError:
    skip("the anthropic package is not installed")

client = anthropic.Anthropic(base_url=URL, api_key=API_KEY, max_retries=0, timeout=120)
MODEL = "tiny-math"
QUESTION = [{"role": "user", "content": "What is 12 + 30?"}]
ADD = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                                                              "required": ["a", "b"], "additionalProperties": False}}


def ask(messages=QUESTION, seed=5, **more):
    extra = {"seed": seed} | more.pop("extra", {})
    return client.messages.create(model=MODEL, max_tokens=more.pop("max_tokens", 60), messages=messages, extra_body=extra, **more)


def streamed(messages=QUESTION, seed=5, **more):
    """The final message that the package puts together, and the events."""
    with client.messages.stream(model=MODEL, max_tokens=more.pop("max_tokens", 60), messages=messages, extra_body={"seed": seed}, **more) as s:
        events = list(s)
        return s.get_final_message(), events


def text_of(m):
    return "".join(b.text for b in m.content if b.type == "text")


def plain(m):
    """The content without what the package adds."""
    return [{k: v for k, v in b.model_dump().items() if k in ("type", "text", "thinking", "name", "input")} for b in m.content]


def chat(messages, **more):
    return post("/v1/chat/completions", {"messages": messages, "max_tokens": 60, "seed": 5} | more)


def test_message():
    m = ask()
    check(m.type == "message" and m.role == "assistant" and m.model == MODEL and m.stop_reason == "end_turn" and m.stop_sequence is None)
    check([b.type for b in m.content] == ["thinking", "text"] and "42" in text_of(m), m)
    same = chat(QUESTION)
    check(m.invar["digest"] == same["invar"]["digest"], "the same answer as a chat's")
    message = same["choices"][0]["message"]
    check(m.content[0].thinking == message["reasoning"] and text_of(m) == message["content"])
    usage = m.usage
    check(usage.input_tokens + usage.cache_read_input_tokens == same["usage"]["prompt_tokens"] and usage.output_tokens == same["usage"]["completion_tokens"])
    check(ask(seed=6, extra={"temperature": 5, "top_p": 1, "top_k": -1}).invar["digest"] != m.invar["digest"], "a control: another seed")


def test_stream():
    whole = ask()
    m, events = streamed()
    check(plain(m) == plain(whole) and m.stop_reason == whole.stop_reason and m.usage.output_tokens == whole.usage.output_tokens)
    check(m.usage.input_tokens + m.usage.cache_read_input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens)
    names = [e.type for e in events]
    check(names[0] == "message_start" and names[-1] == "message_stop" and names.count("content_block_start") == 2 == names.count("content_block_stop"))
    check("".join(e.text for e in events if e.type == "text") == text_of(whole))
    check(sum(e.type == "content_block_delta" for e in events) > 5, "a control: it comes in pieces")


def test_conversation():
    m = ask()
    more = [*QUESTION, {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in m.content]},
            {"role": "user", "content": [{"type": "text", "text": "And 1 + 1?", "cache_control": {"type": "ephemeral"}}]}]
    answer = ask(more, system=[{"type": "text", "text": "Be brief."}])
    said = {"role": "assistant", "content": text_of(m), "reasoning_content": m.content[0].thinking}
    same = chat([{"role": "system", "content": "Be brief."}, QUESTION[0], said, {"role": "user", "content": "And 1 + 1?"}])
    check(answer.invar["digest"] == same["invar"]["digest"])
    check(ask(more).invar["digest"] != answer.invar["digest"], "a control: the system prompt is read")
    begun = ask([*QUESTION, {"role": "assistant", "content": "The sum is"}], max_tokens=8)
    same = chat([*QUESTION, {"role": "assistant", "content": "The sum is"}], max_tokens=8, continue_final_message=True, add_generation_prompt=False)
    check(begun.invar["digest"] == same["invar"]["digest"], "a last message of the assistant is continued")


def test_ends():
    m = ask(stop_sequences=["42"])
    check(m.stop_reason == "stop_sequence" and m.stop_sequence == "42" and "42" not in text_of(m), m)
    final, _ = streamed(stop_sequences=["42"])
    check(final.stop_reason == "stop_sequence" and final.stop_sequence == "42" and plain(final) == plain(m))
    check(ask(max_tokens=3).stop_reason == "max_tokens")
    off = ask(thinking={"type": "disabled"})
    check(off.invar["digest"] == chat(QUESTION, chat_template_kwargs={"enable_thinking": False})["invar"]["digest"])
    on = ask(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)
    check(on.invar["digest"] == chat(QUESTION, chat_template_kwargs={"enable_thinking": True}, max_tokens=2000)["invar"]["digest"])


def test_tools():
    choice = {"type": "tool", "name": "add"}
    m = ask(tools=[ADD], tool_choice=choice, max_tokens=400)
    call = m.content[-1]
    check(m.stop_reason == "tool_use" and call.type == "tool_use" and call.name == "add" and sorted(call.input) == ["a", "b"], m)
    openai_tools = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": ADD["input_schema"]}}]
    same = chat(QUESTION, tools=openai_tools, tool_choice={"type": "function", "function": {"name": "add"}}, max_tokens=400)
    check(m.invar["digest"] == same["invar"]["digest"] and json.loads(same["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == call.input)
    final, events = streamed(tools=[ADD], tool_choice=choice, max_tokens=400)
    check(plain(final) == plain(m) and final.stop_reason == "tool_use" and any(e.type == "input_json" for e in events), final)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "26"}], "is_error": False}
    after = ask([*QUESTION, {"role": "assistant", "content": [call.model_dump(exclude_none=True, exclude={"toolset_name"})]},
                 {"role": "user", "content": [result, {"type": "text", "text": "Thanks."}]}], tools=[ADD])
    message = {"role": "assistant", "content": "", "tool_calls": [{"id": call.id, "type": "function", "function": {"name": "add", "arguments": json.dumps(call.input)}}]}
    same = chat([*QUESTION, message, {"role": "tool", "tool_call_id": call.id, "content": "26"}, {"role": "user", "content": "Thanks."}], tools=openai_tools)
    check(after.invar["digest"] == same["invar"]["digest"])
    some = ask(tools=[ADD], tool_choice={"type": "any", "disable_parallel_tool_use": True}, max_tokens=400)
    check(some.stop_reason == "tool_use" and sum(b.type == "tool_use" for b in some.content) == 1)
    none = ask(tools=[ADD], tool_choice={"type": "none"})
    check(none.invar["digest"] == ask().invar["digest"], "no tools, no trace of them")


class Sum(pydantic.BaseModel):
    a: int
    b: int


def test_parse():
    """messages.parse: a pydantic model as the format of the output."""
    m = client.messages.parse(model=MODEL, max_tokens=200, messages=QUESTION, output_format=Sum, extra_body={"seed": 5})
    check(isinstance(m.parsed_output, Sum) and m.stop_reason == "end_turn", m)
    low = ask(output_config={"effort": "low"})
    check(low.invar["digest"] == chat(QUESTION, reasoning_effort="low")["invar"]["digest"])


def test_errors():
    """The package chooses the exception by the status, and shows the type of the body."""
    for kind, name, body in ((anthropic.NotFoundError, "not_found_error", {"model": "another"}),
                             (anthropic.BadRequestError, "invalid_request_error", {"max_tokens": 0})):
        try:
            client.messages.create(**({"model": MODEL, "max_tokens": 5, "messages": QUESTION} | body))
        except kind as error:
            check(error.body["type"] == "error" and error.body["error"]["type"] == name and error.body["request_id"], error.body)
        else:
            check(False, "not refused", body)


def refused(words, kind=anthropic.BadRequestError, **body):
    try:
        client.messages.create(**({"model": MODEL, "max_tokens": 5, "messages": QUESTION} | body))
    except kind as error:
        check(words in str(error), words, error)
        return
    check(False, "not refused", words)


def test_refusals():
    def user(*blocks):
        return [{"role": "user", "content": list(blocks)}]

    refused("model", anthropic.NotFoundError, model="another")
    refused("messages: ", messages=[])
    refused("messages[0].role: ", messages=[{"role": "robot", "content": "a"}])
    refused("messages[0].content[0].type: ", messages=user({"type": "image", "source": {"type": "url", "url": "http://a/"}}))
    refused("messages[0].content[1].text: ", messages=user({"type": "text", "text": "a"}, {"type": "text"}))
    refused("messages[0].content[0].tool_use_id: ", messages=user({"type": "tool_result"}))
    refused("messages[0].content[0].colour: ", messages=user({"type": "text", "text": "a", "colour": "red"}))
    refused("messages[0].content[0].input: ", messages=[{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": "c"}]}])
    refused("messages[0].content[0].data: ", messages=[{"role": "assistant", "content": [{"type": "redacted_thinking"}]}])
    refused("tools[0].type: ", tools=[{"type": 7, "name": "bash"}])
    refused("tools[0].name: ", tools=[{"input_schema": {}}])
    refused("tool_choice", tool_choice={"type": "any"})
    refused("tool_choice.type: ", tools=[ADD], tool_choice={"type": "some"})
    refused("thinking.type: ", thinking={"type": "deep"})
    refused("max_tokens: ", max_tokens=0)
    refused("top_q", extra_body={"top_q": 1})
    refused("context length", messages=[{"role": "user", "content": "1 " * 5000}])


def test_counts():
    """What a message with the same conversation reads."""
    def count(**body):
        return client.messages.count_tokens(model=MODEL, **body).input_tokens

    def read(messages, **more):
        usage = ask(messages, max_tokens=1, **more).usage
        return usage.input_tokens + usage.cache_read_input_tokens

    begun = [*QUESTION, {"role": "assistant", "content": "The sum is"}]
    call = {"type": "tool_use", "id": "a", "name": "add", "input": {"a": 1, "b": 2}}
    called = [*QUESTION, {"role": "assistant", "content": [call]},
              {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "3"}]}]
    bodies = ({}, {"system": "Be brief."}, {"tools": [ADD]}, {"tools": [ADD], "tool_choice": {"type": "any"}}, {"thinking": {"type": "disabled"}},
              {"messages": begun}, {"messages": called, "tools": [ADD]}, {"messages": [{"role": "user", "content": "<|im_start|> \u00e9"}]})
    counts = [count(**{"messages": QUESTION} | body) for body in bodies]
    check(counts == [read(**{"messages": QUESTION} | body) for body in bodies], counts)
    check(len({counts[i] for i in (0, 1, 5, 6)}) == 4, "a control: they differ", counts)
    check(count(messages=[{"role": "user", "content": "1 " * 50000}]) > 50000, "longer than the model's context")
    for words, kind, body in (("messages: ", anthropic.BadRequestError, {"messages": []}), ("model", anthropic.NotFoundError, {"model": "another"}),
                              ("max_tokens", anthropic.BadRequestError, {"extra_body": {"max_tokens": 5}}),
                              ("messages[0].role: ", anthropic.BadRequestError, {"messages": [{"role": "x", "content": "a"}]})):
        try:
            client.messages.count_tokens(**{"model": MODEL, "messages": QUESTION} | body)
        except kind as error:
            check(words in str(error), words, error)
        else:
            check(False, "not refused", words)


def test_key_in_its_own_header():
    """x-api-key instead of Authorization."""
    body = json.dumps({"model": MODEL, "max_tokens": 1, "messages": QUESTION}).encode()
    for headers in ({"x-api-key": API_KEY}, {"Authorization": f"Bearer {API_KEY}"}):
        request = urllib.request.Request(URL + "/v1/messages", data=body, headers=headers | {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            check(json.load(response)["type"] == "message")


main(test_message, test_stream, test_conversation, test_ends, test_tools, test_parse, test_errors, test_refusals, test_counts, test_key_in_its_own_header)
