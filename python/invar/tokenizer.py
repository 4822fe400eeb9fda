"""A model's tokenizer and chat template, by transformers' names. Any number of threads may use one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import _check
from ._errors import InvarError, Status
from ._library import Handle, c_string, check, encode, ffi, lib, new_error, path_bytes, take_text, text_of, to_json
from ._model import find_model, path_text

Message = dict[str, Any]


ARGUMENTS = {"messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message"}


def template_variables(given: Any) -> dict[str, Any]:
    """chat_template_kwargs: variables of the template by name, none that chat() sets itself."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        _check.wrong("chat_template_kwargs", "a dict of names and values", given)
    taken = sorted(ARGUMENTS & set(given))
    if taken:
        raise InvarError(Status.INVALID, f"chat_template_kwargs: wanted {', '.join(taken)} as an argument of its own, found it here")
    return dict(given)


def check_talk(talk: Any, where: str = "") -> list[Any]:
    messages = _check.listing(talk, f"{where}messages", "a list of messages")
    if not messages:
        raise InvarError(Status.INVALID, f"{where}messages: wanted at least one message, found none")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            _check.wrong(f"{where}message {i}", 'a dict as {"role": "user", "content": "..."}', message)
    return messages


def _text_of(message: Message) -> str:
    """The text of a message; the library has checked it."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    texts = [part if isinstance(part, str) else part.get("text", part.get("refusal")) for part in content]
    return "\n".join(str(text) for text in texts)


class Tokenizer:
    """`Tokenizer(model)` reads a model directory without its weights; LLM.get_tokenizer() gives an engine's."""

    def __init__(self, model: str | os.PathLike[str]) -> None:
        out, err = ffi.new("iv_text_model **"), new_error()
        check(lib().iv_text_model_open(path_bytes(find_model(model)), out, err), err)
        self._open(Handle(out[0], lib().iv_text_model_close, "tokenizer"), None)

    def _open(self, handle: Handle | None, owner: Handle | None) -> None:
        self._handle, self._owner = handle, owner
        self._decoded: dict[int, str] = {}

    @classmethod
    def _of_engine(cls, engine: Handle) -> Tokenizer:
        tokenizer = cls.__new__(cls)
        tokenizer._open(None, engine)
        return tokenizer

    @property
    def _pointer(self) -> Any:
        if self._handle is not None:
            return self._handle.pointer
        assert self._owner is not None
        return lib().iv_engine_text_model(self._owner.pointer)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids; the text of a special token becomes that token."""
        add_special_tokens = _check.flag(add_special_tokens, "add_special_tokens")
        data, out, err = encode(text, "prompt"), ffi.new("iv_ids *"), new_error()
        check(lib().iv_tokenize(self._pointer, data, len(data), add_special_tokens, out, err), err)
        ids = ffi.unpack(out.data, out.count) if out.count else []
        lib().iv_ids_free(out)
        return list(ids)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of one id or of a row of them: a list, an array, a tensor. Ids outside the vocabulary have none."""
        ids = _check.token_ids([token_ids] if _check.is_integer(token_ids) else token_ids)
        skip_special_tokens = _check.flag(skip_special_tokens, "skip_special_tokens")
        out, err = ffi.new("iv_text *"), new_error()
        data = ffi.new("int32_t[]", ids)
        check(lib().iv_detokenize(self._pointer, data, len(ids), not skip_special_tokens, out, err), err)
        return take_text(out)

    def decoded_token(self, token_id: int) -> str:
        """The text of one token; bytes that are no character by themselves are U+FFFD."""
        token_id = _check.integer(token_id, "token id", 0, _check.INT32_MAX)
        text = self._decoded.get(token_id)
        if text is None:
            text = self._decoded[token_id] = self.decode(token_id)
        return text

    def convert_ids_to_tokens(self, token_ids: Iterable[int]) -> list[str | None]:
        """Strings of the vocabulary; None outside it."""
        size = ffi.new("size_t *")
        out: list[str | None] = []
        for token_id in _check.integers(token_ids, "token ids", -(2**31)):
            text = lib().iv_token_string(self._pointer, token_id, size)
            out.append(None if text == ffi.NULL else bytes(ffi.buffer(text, size[0])).decode("utf-8", "replace"))
        return out

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: list[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The rendered conversation. chat_template: a template's text, or the path of its file; other keywords are
        variables of the template. continue_final_message: ends with the last message's text."""
        add_generation_prompt = _check.flag(add_generation_prompt, "add_generation_prompt")
        continue_final_message = _check.flag(continue_final_message, "continue_final_message")
        if tools is not None:
            for i, tool in enumerate(_check.listing(tools, "tools", "a list of tools")):
                if not isinstance(tool, Mapping):
                    _check.wrong(f"tools[{i}]", "a dict", tool)
        if add_generation_prompt and continue_final_message:
            raise InvarError(
                Status.INVALID, "chat: wanted add_generation_prompt or continue_final_message, found both"
            )
        given = {**variables, "messages": check_talk(messages), "add_generation_prompt": add_generation_prompt}
        if tools:
            given["tools"] = tools
        text = self._render(to_json(given, "chat"), chat_template)
        if not continue_final_message:
            return text
        last = _text_of(messages[-1]).strip() if messages else ""
        at = text.rfind(last) if last else -1
        if at < 0:
            raise InvarError(Status.TEMPLATE, "continue_final_message: the template changes the last message's text")
        return text[: at + len(last)]

    def _render(self, variables: bytes, chat_template: str | None) -> str:
        out, err = ffi.new("iv_text *"), new_error()
        if chat_template is not None and not isinstance(chat_template, str):
            _check.wrong("chat_template", "a template's text or its file", chat_template)
        if chat_template is None:
            check(lib().iv_render_chat(self._pointer, variables, len(variables), ffi.NULL, out, err), err)
        elif "{" not in chat_template:
            if not os.path.isfile(path_text(chat_template, "chat_template")):
                raise InvarError(Status.NOT_FOUND, f"chat_template: wanted a template's text or its file, found neither in {chat_template!r}")
            path = path_bytes(chat_template, "chat_template")
            check(lib().iv_render_template(path, variables, len(variables), ffi.NULL, out, err), err)
        else:
            with tempfile.NamedTemporaryFile(suffix=".jinja") as file:
                file.write(encode(chat_template, "chat_template"))
                file.flush()
                path = path_bytes(file.name)
                check(lib().iv_render_template(path, variables, len(variables), ffi.NULL, out, err), err)
        return take_text(out)

    def _reasoning_after(self, prompt: str) -> int:
        data = encode(prompt, "prompt")
        return int(lib().iv_reasoning_after(self._pointer, self._reasoning_form, data, len(data)))

    @property
    def _reasoning_form(self) -> int:
        return int(lib().iv_reasoning_form_of(self._pointer))

    @property
    def reasoning_form(self) -> str:
        """How the model writes its reasoning: "qwen3" (<think>), "openai_gptoss", ... (docs/SERVER.md, "Reasoning")."""
        return text_of(lib().iv_reasoning_form_name(self._reasoning_form))

    def _form_ids(self, tools: bool) -> list[int]:
        """The special tokens that a chat's text shows."""
        calls = lib().iv_tool_form_of(self._pointer) if tools else lib().IV_TOOL_FORM_NONE
        out = ffi.new("int32_t[]", lib().IV_FORM_IDS_MAX)
        return list(ffi.unpack(out, lib().iv_form_ids(self._pointer, self._reasoning_form, calls, out)))

    def _parts(self, text: bytes, tools: list[dict[str, Any]] | None, after: int) -> dict[str, Any]:
        out, err = ffi.new("iv_text *"), new_error()
        listed = ffi.NULL if not tools else c_string(to_json(tools, "tools").decode(), "tools")
        form = self._reasoning_form, after, lib().iv_tool_form_of(self._pointer)
        check(lib().iv_answer_parts(*form, listed, text, len(text), out, err), err)
        parts: dict[str, Any] = json.loads(take_text(out))
        return parts

    def parse_answer(
        self, text: str, tools: list[dict[str, Any]] | None = None, prompt: str = ""
    ) -> tuple[str, str, list[dict[str, str]]]:
        """The reasoning, the content and the calls ("name", "arguments" as JSON text) in the text of an answer to the
        rendered prompt, as the server divides it. Without tools no calls are searched. The text has the special tokens of
        the model's form, as LLM.chat() and skip_special_tokens=False give it."""
        parts = self._parts(encode(text, "answer"), tools, self._reasoning_after(prompt))
        return parts["reasoning"], parts["content"], parts["tool_calls"]

    @property
    def tool_form(self) -> str:
        """How the model writes tool calls: "hermes", "llama3_json", ... (docs/SERVER.md, "Tool calls")."""
        return text_of(lib().iv_tool_form_name(lib().iv_tool_form_of(self._pointer)))
