"""Sessions of clients, and the samplers that they open: what each draws from."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

from tinker import types

from .engine import Weights
from .errors import ServerError, invalid
from .learner import read_manifest
from .options import Options
from .state import EPHEMERAL, Path, Store, parse_path


class Sessions:
    def __init__(self, store: Store, timeout: float) -> None:
        self._store, self._timeout, self._lock = store, timeout, threading.Lock()
        self._all = store.all("sessions")
        self._seen = dict.fromkeys(self._all, 0.0)  # seconds of the clock; 0: not since the server started

    def create(self, request: types.CreateSessionRequest) -> str:
        session = uuid.uuid4().hex
        record = {"created": time.time(), "tags": request.tags, "metadata": request.user_metadata, "sdk_version": request.sdk_version,
                  "display_name": request.display_name, "project": request.project_id, "finished": None}  # fmt: skip
        self._store.write("sessions", session, record)
        with self._lock:
            self._all[session], self._seen[session] = record, time.monotonic()
        return session

    def get(self, session: str) -> dict[str, Any]:
        with self._lock:
            found = self._all.get(session)
        if found is None:
            raise ServerError(f"session_id: wanted a session of this server, found {session}", 404)
        return found

    def heartbeat(self, session: str) -> None:
        """410: the client stops its heartbeat."""
        if self.get(session)["finished"]:
            raise ServerError(f"session {session}: wanted one that goes on, found one that was finished", 410)
        self._seen[session] = time.monotonic()

    touch = heartbeat

    def finish(self, session: str, reason: Any) -> None:
        record = self.get(session)
        if not record["finished"]:  # the first reason stays
            record["finished"] = {"reason": reason, "time": time.time()}
            self._store.write("sessions", session, record)

    def lives(self, session: str) -> bool:
        with self._lock:
            record, seen = self._all.get(session), self._seen.get(session, 0.0)
        return record is not None and not record["finished"] and seen > 0 and time.monotonic() - seen < self._timeout

    def newest(self) -> list[str]:
        with self._lock:
            return sorted(self._all, key=lambda key: -float(self._all[key]["created"]))


class Samplers:
    def __init__(self, options: Options, store: Store) -> None:
        self._options, self._store, self._lock = options, store, threading.Lock()
        self._all = store.all("samplers")

    def create(self, session: str, seq: int, path: str | None = None, base_model: str | None = None, ephemeral: Path | None = None,
               inflight: bool = False) -> str:  # fmt: skip
        """A sampler of a checkpoint, of the base, or of weights without a name."""
        name = f"{session}:sample:{seq}"
        if ephemeral is None and path is None and base_model != self._options.name:
            raise invalid("base_model", self._options.name, str(base_model), "the server has one model; or give a model_path")
        if path is not None:
            self._weights(parse_path(path, ("sampler_weights",)))
            if base_model not in (None, self._options.name):
                raise invalid("base_model", self._options.name, str(base_model))
        record = {"session": session, "seq": seq, "path": path, "ephemeral": str(ephemeral) if ephemeral else None, "inflight": inflight,
                  "clients": 0, "created": time.time()}  # fmt: skip
        with self._lock:
            found = self._all.get(name)
            if found is not None and found["path"] != path:
                raise ServerError(f"sampling_session_seq_id: wanted a new one, found {seq}")
            self._all[name] = record if found is None else found
        self._store.write("samplers", name, record)
        return name

    def get(self, sampler: str) -> dict[str, Any]:
        with self._lock:
            found = self._all.get(sampler)
        if found is None:
            raise ServerError(f"sampling_session_id: wanted a sampler of this server, found {sampler}", 404)
        return found

    def of_session(self, session: str) -> list[str]:
        with self._lock:
            return [name for name, record in self._all.items() if record["session"] == session]

    def join(self, sampler: str) -> int:
        """A number for a copy of a sampling client, which no other has."""
        record = self.get(sampler)
        with self._lock:
            record["clients"] += 1
            count = int(record["clients"])
        self._store.write("samplers", sampler, record)
        return count

    def weights(self, sampler: str) -> Weights:
        """What a request that begins now draws from: of an inflight sampler, the run's newest inflight weights."""
        record = self.get(sampler)
        if record["path"] is not None:
            return self._weights(parse_path(record["path"], ("sampler_weights",)))
        if record["ephemeral"] is None:
            return Weights("base")
        if record["inflight"]:
            run = record["ephemeral"].removeprefix("tinker://").split("/")[0]
            with self._lock:
                of_run = [r for r in self._all.values() if r["inflight"] and r["ephemeral"].startswith(f"tinker://{run}/")]
            record = max(of_run, key=lambda r: float(r["created"]))
        path = Path(*record["ephemeral"].removeprefix("tinker://").split("/"))
        if self._store.info(path) is None:
            raise ServerError(f"{sampler}: its weights are gone: the server keeps the newest {self._options.keep_ephemeral} without a name of a model "
                              "(--keep-ephemeral); save_weights_for_sampler(name) keeps them")  # fmt: skip
        return self._weights(path)

    def at(self, path: str | None, base_model: str | None) -> Weights:
        """Of a request without a sampling session."""
        if path is not None:
            return self._weights(parse_path(path, ("sampler_weights",)))
        if base_model != self._options.name:
            raise invalid("base_model", self._options.name, str(base_model))
        return Weights("base")

    def _weights(self, path: Path) -> Weights:
        folder = self._store.find(path)
        info = self._store.info(path)
        return Weights(f"{path}@{info['time'] if info else 0}", folder, read_manifest(folder).is_lora)

    def forget_old(self, run: str) -> None:
        """Weights without a name beyond those that are kept."""
        found = [path for path, _ in self._store.checkpoints(run, (EPHEMERAL,))]
        for path in found[: -self._options.keep_ephemeral]:
            self._store.delete(path)
