"""Where a model is: a directory, or a name on Hugging Face whose snapshot lies in the cache of its tools."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from . import _check
from ._errors import InvarError, Status

NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)


def hub_cache(environment: Mapping[str, str] = os.environ) -> str:
    """The folder that huggingface_hub uses."""
    found = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    if not found:
        home = environment.get("HF_HOME") or os.path.join(environment.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
        found = os.path.join(home, "hub")
    return os.path.expandvars(os.path.expanduser(found))


def snapshot(name: str, cache: str) -> str | None:
    """The newest snapshot of the branch main."""
    folder = os.path.join(cache, "models--" + name.replace("/", "--"))
    try:
        with open(os.path.join(folder, "refs", "main"), encoding="utf-8") as file:
            revision = file.read().strip()
    except (OSError, UnicodeDecodeError):
        return None
    path = os.path.join(folder, "snapshots", revision)
    return path if revision == os.path.basename(revision) and os.path.isfile(os.path.join(path, "config.json")) else None


def path_text(path: str | os.PathLike[str], what: str) -> str:
    """A path as a text, with the home directory for ~."""
    if not isinstance(path, (str, os.PathLike)):
        _check.wrong(what, "a path", path)
    found = os.fspath(path)
    if not found:
        raise InvarError(Status.INVALID, f"{what}: wanted a path, found an empty text")
    found = os.path.expanduser(_check.text(found, what))
    try:
        os.fsencode(found)
    except UnicodeEncodeError as error:
        raise InvarError(Status.INVALID, f"{what}: wanted a path, found a lone surrogate at {error.start}") from None
    return found


def find_model(model: str | os.PathLike[str]) -> str:
    """The directory of a model. InvarError says where to get one that is a name on Hugging Face."""
    path = path_text(model, "model")
    if os.path.exists(path):
        return path
    name = isinstance(model, str) and NAME.fullmatch(model) is not None
    cache = hub_cache()
    found = snapshot(str(model), cache) if name else None
    if found is not None:
        return found
    message = f"model: wanted a directory with config.json, found nothing at {path}"
    if name and "/" in path:
        message += (
            f", nor a snapshot of that name in {cache} (HF_HUB_CACHE, HF_HOME). A model of that name on Hugging Face is fetched "
            f"by `pip install huggingface_hub` and `hf download {path}`; then this name opens it"
        )
    raise InvarError(Status.NOT_FOUND, message)
