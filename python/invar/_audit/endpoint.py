"""An OpenAI-compatible server over HTTP, with what it was found to lack."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from .. import _check
from .._errors import InvarError, Status
from .answers import Answer, brief, join_events, read_answer

PATIENCE_S = 60.0  # of one request with 429 and 503
ROUTES = {"chat": "/chat/completions", "completions": "/completions"}
FLUSH_ROUTES = ("/reset_prefix_cache", "/flush_cache")  # vLLM's (in its development mode), SGLang's
# Fields that are left out, in this order, if the server refuses them, and what that means.
OPTIONAL = {
    "return_token_ids": "",
    "logprobs": "The server reports no log-probabilities: only texts are compared.",
    "seed": "The server takes no seed.",
    "temperature": "The server takes no temperature.",
    "ignore_eos": "",
}


class Endpoint:
    """Several threads may ask. notes: what a reader of the results should know."""

    def __init__(self, url: str, model: str | None, api: str, key: str | None, timeout: float) -> None:
        url = _check.text(url, "url")
        for what, text in (("model", model), ("api_key", key)):
            _check.optional(_check.text, text, what)
        timeout = _check.number(timeout, "timeout", 1e-3, threading.TIMEOUT_MAX)
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port above 65,535, a bracket
            right = False
        if not right:
            raise InvarError(Status.INVALID, f"url: wanted http://HOST:PORT or https://HOST, found {url!r}")
        if api not in ("auto", *ROUTES):
            raise InvarError(Status.INVALID, f"api: wanted auto, chat or completions, found {api!r}")
        path = parts.path.rstrip("/")
        self.root = path.removesuffix("/v1")
        self.base = path if path.endswith("/v1") else path + "/v1"
        self.host, self.port, self.tls = parts.hostname or "", parts.port, parts.scheme == "https"
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self.root}"
        self.key, self.timeout, self.api = key, timeout, api
        self.notes: list[str] = []
        self.retries = 0
        self._lacks: set[str] = set()
        self._renamed = False
        self._lock = threading.Lock()
        self._flush: str | None = None
        self.model = model or self._first_model()

    # ---- HTTP

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, str]:
        """Status and text. Waits where the server asks for it (429, 503)."""
        headers = {"Content-Type": "application/json", "User-Agent": "invar-audit"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        begin, pause = time.monotonic(), 0.25
        while True:
            status, text, after = self._once(method, path, data, headers)
            waited = time.monotonic() - begin
            if status not in (429, 503) or waited > PATIENCE_S:
                return status, text
            with self._lock:
                self.retries += 1
            time.sleep(min(max(pause if after is None else after, 0.05), PATIENCE_S) * (0.75 + random.random() / 2))
            pause = min(2 * pause, 8)

    def _once(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> tuple[int, str, float | None]:
        kind = http.client.HTTPSConnection if self.tls else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=self.timeout)
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
            after = response.getheader("Retry-After")
            return response.status, text, float(after) if after and after.replace(".", "", 1).isdigit() else None
        except (OSError, http.client.HTTPException) as error:
            why = f"{type(error).__name__}: {error}".rstrip(": ")
            raise InvarError(Status.IO, f"{self.url}{path.removeprefix(self.root)}: no answer: {why}") from None
        finally:
            connection.close()

    def _first_model(self) -> str:
        status, text = self.call("GET", f"{self.base}/models")
        try:
            if status == 200:
                return str(json.loads(text)["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError):
            pass
        raise InvarError(
            Status.NOT_FOUND, f"{self.url}: GET /v1/models: wanted a list of models, found {status}: {brief(text)}; name one"
        )

    # ---- requests

    def body(self, prompt: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {"model": self.model, **fields}
        if self.api == "chat":
            out["messages"] = [{"role": "user", "content": prompt}]
            out["logprobs"] = True
        else:
            out["prompt"], out["logprobs"] = prompt, 1
        out["return_token_ids"] = True
        for name in self._lacks:
            out.pop(name, None)
        if self._renamed:
            out["max_completion_tokens"] = out.pop("max_tokens")
        return out

    def ask(self, prompt: str, fields: Mapping[str, Any], stream: bool = False) -> Answer:
        """An answer, or one with `error`."""
        try:
            body = self.body(prompt, fields)
            status, text = self.call("POST", self.base + ROUTES[self.api], {**body, "stream": True} if stream else body)
        except InvarError as error:
            return Answer("", error=str(error))
        if status != 200:
            return Answer("", error=f"{status}: {brief(message_of(text))}")
        try:
            return join_events(read_events(text)) if stream else read_answer(json.loads(text))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            return Answer("", error=f"200, but not an answer ({type(error).__name__}: {error}): {brief(text)}")

    def probe(self, prompt: str, fields: Mapping[str, Any]) -> Answer:
        """The first answer. Finds the route and the fields that the server takes."""
        tries = ["chat", "completions"] if self.api == "auto" else [self.api]
        errors = []
        for api in tries:
            self.api, self._lacks, self._renamed = api, set(), False
            answer = self._adapt(prompt, fields)
            if answer.ended:
                self._note(answer, fields)
                return answer
            errors.append(f"POST /v1{ROUTES[api]}: {answer.error}")
        raise InvarError(Status.UNSUPPORTED, f"{self.url}: wanted an answer, found " + "; ".join(errors))

    def _adapt(self, prompt: str, fields: Mapping[str, Any]) -> Answer:
        while True:
            answer = self.ask(prompt, fields)
            why = answer.error or ""
            if answer.ended or not why.startswith(("400", "422", "500", "501")):
                return answer
            sent = self.body(prompt, fields)
            if "max_completion_tokens" in why and "max_tokens" in sent:
                self._renamed = True
                continue
            named = [name for name in OPTIONAL if name in sent and name in why]
            left = named or [name for name in OPTIONAL if name in sent]
            if not left:
                return answer
            self._lacks.add(left[0])

    def _note(self, answer: Answer, fields: Mapping[str, Any]) -> None:
        lacks = {name for name in self._lacks if OPTIONAL[name] and (name in fields or name == "logprobs")}
        if not answer.logprobs:
            lacks.add("logprobs")
        self.notes += [OPTIONAL[name] for name in OPTIONAL if name in lacks]
        if not answer.tokens and not answer.text:
            self.notes.append("The first answer is empty.")

    # ---- caches

    def can_flush(self) -> bool:
        """Whether cached prefixes can be cleared. Finds the route."""
        for path in FLUSH_ROUTES:
            try:
                status = self.call("POST", self.root + path, {})[0]
            except InvarError:  # a server may close the connection of a route that it does not have
                continue
            if status == 200:
                self._flush = path
                return True
        return False

    def flush(self) -> None:
        status, text = self.call("POST", f"{self.root}{self._flush}", {})
        if status != 200:
            raise InvarError(Status.BUSY, f"{self.url}: POST {self._flush}: {status}: {brief(message_of(text))}")


def message_of(text: str) -> str:
    """The message of an error body in OpenAI's form, or the whole text."""
    try:
        body = json.loads(text)
        error = body.get("error", body)
        return str(error.get("message") or error.get("detail") or text) if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError):
        return text


def read_events(text: str) -> list[Mapping[str, Any]]:
    """The data of server-sent events."""
    out = []
    for line in text.splitlines():
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data and data != "[DONE]":
            event = json.loads(data)
            if "error" in event and "choices" not in event:
                raise ValueError(f"the stream ended with an error: {brief(message_of(data))}")
            out.append(event)
    if not out:
        raise ValueError("no events of a stream")
    return out
