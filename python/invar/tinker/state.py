"""What a server keeps on disk: sessions, runs, checkpoints. A folder of a run is named by its id; JSON files are replaced whole.

    STATE/sessions/SESSION.json
    STATE/samplers/SAMPLER.json
    STATE/runs/RUN/run.json
    STATE/runs/RUN/weights/NAME/           a checkpoint of the trainer, and checkpoint.json
    STATE/runs/RUN/sampler_weights/NAME/   a Hugging Face or PEFT directory, and checkpoint.json
    STATE/runs/RUN/ephemeral/NAME/         the same without a name of the client's
    STATE/runs/RUN/parked/                 a model that left memory"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import threading
import time
from dataclasses import dataclass
from typing import Any

from .errors import ServerError, invalid

KINDS = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
EPHEMERAL = "ephemeral"  # sampler weights without a name: the last few of a run, never listed
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
RUN = re.compile(r"[A-Za-z0-9_-]{1,80}:train:[0-9]{1,10}")
INFO = "checkpoint.json"


def write_json(path: str, value: Any) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


def read_json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ServerError(f"{path}: wanted JSON: {error}", 500) from None


@dataclass(frozen=True)
class Path:
    """tinker://RUN/KIND/NAME"""

    run: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"tinker://{self.run}/{self.kind}/{self.name}"

    @property
    def checkpoint_id(self) -> str:
        return f"{self.kind}/{self.name}"


def parse_path(text: str, kinds: tuple[str, ...] = tuple(KINDS)) -> Path:
    parts = text.removeprefix("tinker://").split("/")
    if not text.startswith("tinker://") or len(parts) != 3 or not RUN.fullmatch(parts[0]) or not NAME.fullmatch(parts[2]):
        raise invalid("path", "tinker://RUN/KIND/NAME", text)
    if parts[1] not in kinds:
        raise invalid(f"path {text}", " or ".join(kinds), parts[1], "save_state writes weights, save_weights_for_sampler sampler_weights")
    return Path(*parts)


def check_name(name: str) -> str:
    if not NAME.fullmatch(name) or name.endswith(".new"):
        raise invalid("name of a checkpoint", "letters, digits, '.', '_', '-', at most 200, the first a letter or digit, not .new at the end", name)
    return name


def check_ttl(seconds: int | None) -> int | None:
    if seconds is not None and not 3600 <= seconds <= 315360000:
        raise invalid("ttl_seconds", "3600 to 315360000, or none", str(seconds))
    return seconds


class Store:
    """Calls of any thread."""

    def __init__(self, folder: str) -> None:
        self.folder, self._lock = folder, threading.RLock()
        os.makedirs(folder, exist_ok=True)
        self._guard = open(os.path.join(folder, "lock"), "w", encoding="ascii")
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServerError(f"{folder}: wanted a state that no other server uses, found one in use", 500) from None
        for name in ("sessions", "samplers", "runs"):
            os.makedirs(os.path.join(folder, name), exist_ok=True)
        self._drop_unfinished()

    def close(self) -> None:
        self._guard.close()

    def _drop_unfinished(self) -> None:
        """Checkpoints that a killed server had begun."""
        for run in self.runs():
            for kind in (*KINDS, EPHEMERAL):
                folder = os.path.join(self.run_folder(run), kind)
                for name in os.listdir(folder) if os.path.isdir(folder) else ():
                    if name.endswith(".new") or not os.path.exists(os.path.join(folder, name, INFO)):
                        shutil.rmtree(os.path.join(folder, name))

    # ---- sessions, samplers and runs

    def write(self, kind: str, key: str, value: dict[str, Any]) -> None:
        with self._lock:
            write_json(self._file(kind, key), value)

    def read(self, kind: str, key: str) -> dict[str, Any] | None:
        return None if "/" in key or key.startswith(".") else read_json(self._file(kind, key))

    def all(self, kind: str) -> dict[str, dict[str, Any]]:
        names = sorted(os.listdir(os.path.join(self.folder, kind)))
        found = {name.removesuffix(".json"): read_json(os.path.join(self.folder, kind, name)) for name in names if name.endswith(".json")}
        return {key: value for key, value in found.items() if value is not None}

    def _file(self, kind: str, key: str) -> str:
        return os.path.join(self.folder, kind, key + ".json")

    def run_folder(self, run: str) -> str:
        return os.path.join(self.folder, "runs", run)

    def runs(self) -> list[str]:
        folder = os.path.join(self.folder, "runs")
        return [name for name in sorted(os.listdir(folder)) if RUN.fullmatch(name)]

    def read_run(self, run: str) -> dict[str, Any]:
        found = read_json(os.path.join(self.run_folder(run), "run.json")) if RUN.fullmatch(run) else None
        if found is None:
            raise ServerError(f"training run: wanted one of this server, found {run}", 404)
        return dict(found)

    def write_run(self, run: str, value: dict[str, Any]) -> None:
        with self._lock:
            write_json(os.path.join(self.run_folder(run), "run.json"), value)

    # ---- checkpoints

    def place(self, path: Path) -> str:
        return os.path.join(self.run_folder(path.run), path.kind, path.name)

    def find(self, path: Path) -> str:
        """The folder of a checkpoint that exists and has not expired."""
        info = self.info(path)
        if info is None:
            raise ServerError(f"checkpoint: wanted one of this server, found {path}", 404)
        return self.place(path)

    def info(self, path: Path) -> dict[str, Any] | None:
        found = read_json(os.path.join(self.place(path), INFO))
        if found is not None and found["expires"] is not None and found["expires"] <= time.time():
            return None
        return None if found is None else dict(found)

    def begin(self, path: Path, overwrite: bool) -> str:
        """A new folder to write to, which commit() makes the checkpoint."""
        if not overwrite and os.path.isdir(self.place(path)) and self.info(path) is not None:
            raise ServerError(f"{path}: wanted a new name, found a checkpoint: choose another name, or overwrite=True")
        folder = self.place(path) + ".new"
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        return folder

    def commit(self, path: Path, ttl: int | None, metadata: dict[str, str] | None) -> None:
        folder, place = self.place(path) + ".new", self.place(path)
        now = time.time()
        size = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)
        write_json(os.path.join(folder, INFO), {
            "time": now, "size": size, "public": False, "metadata": metadata, "expires": None if ttl is None else now + ttl,
        })  # fmt: skip
        with self._lock:
            if os.path.isdir(place):
                os.rename(place, place + ".old.new")
            os.rename(folder, place)
            shutil.rmtree(place + ".old.new", ignore_errors=True)

    def change(self, path: Path, **values: Any) -> None:
        with self._lock:
            self.find(path)
            info = self.info(path) or {}
            write_json(os.path.join(self.place(path), INFO), info | values)

    def delete(self, path: Path) -> None:
        with self._lock:
            place = self.find(path)
            os.rename(place, place + ".gone.new")
            shutil.rmtree(place + ".gone.new", ignore_errors=True)

    def checkpoints(self, run: str, kinds: tuple[str, ...] = tuple(KINDS)) -> list[tuple[Path, dict[str, Any]]]:
        """Of a run, the oldest first."""
        found = []
        for kind in kinds:
            folder = os.path.join(self.run_folder(run), kind)
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                path = Path(run, kind, name)
                info = self.info(path) if NAME.fullmatch(name) and not name.endswith(".new") else None
                if info is not None:
                    found.append((path, info))
        return sorted(found, key=lambda pair: (pair[1]["time"], str(pair[0])))

    def sweep(self) -> None:
        """Removes what has expired."""
        for run in self.runs():
            for kind in KINDS:
                folder = os.path.join(self.run_folder(run), kind)
                for name in os.listdir(folder) if os.path.isdir(folder) else ():
                    info = read_json(os.path.join(folder, name, INFO))
                    if info is not None and info["expires"] is not None and info["expires"] <= time.time():
                        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
