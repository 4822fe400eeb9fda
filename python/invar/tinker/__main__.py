"""python -m invar.tinker MODEL: flags, and the server on a port."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from typing import Any

from .._errors import InvarError
from .errors import ServerError
from .options import Options, flags


def _range(name: str, meta: dict[str, Any], kind: type) -> Any:
    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"wanted a number, found {text!r}") from None
        low, high = meta.get("low"), meta.get("high")
        if (low is not None and value < low) or (high is not None and value > high) or value != value:
            wanted = f"{low} to {high}" if high is not None else f"{low} or more"
            raise argparse.ArgumentTypeError(f"wanted {wanted}, found {text}")
        return value

    return read


_FLOATS = ("lora_alpha", "gpu_memory_utilization", "session_timeout")


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="python -m invar.tinker", usage="python -m invar.tinker MODEL [--flag VALUE ...]", description="An open Tinker server over invar (docs/TINKER.md).", allow_abbrev=False)
    out.add_argument("model", metavar="MODEL", help="a Hugging Face directory, or the name of one in its cache")
    for name, default, meta in flags():
        shown = "" if default in (None, ()) else f" ({default})"
        more: dict[str, Any] = {"help": meta["help"].replace("%", "%%") + shown, "default": default, "dest": name}
        if meta.get("repeat"):
            more |= {"action": "append", "default": None}
        elif "choices" in meta:
            more["choices"] = meta["choices"]
        elif isinstance(default, (int, float)) or "low" in meta or name == "seed":
            more["type"] = _range(name, meta, float if name in _FLOATS else int)
        out.add_argument("--" + name.replace("_", "-"), **more)
    return out


def options_of(words: list[str] | None) -> Options:
    read = parser()
    given = vars(read.parse_args(words))
    given["api_key"] = tuple(given["api_key"] or ())
    for key in given["api_key"]:
        if not key.startswith("tml-") or not key.isascii() or not key.isprintable():
            read.error(f"--api-key: wanted a key that begins with tml-, as the client wants it, found {key[:8]}...")
    return Options(**given)


def main(words: list[str] | None = None) -> int:
    options = options_of(words)
    try:
        import uvicorn

        from .app import application
        from .service import Service
    except ImportError as error:
        print(f"invar.tinker: wanted the packages of invar[tinker]: pip install 'invar[tinker]': {error}", file=sys.stderr)
        return 1
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(message)s", stream=sys.stderr)
    for name in ("httpx", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if not options.api_key and options.host not in ("127.0.0.1", "::1", "localhost"):
        logging.getLogger("invar.tinker").warning("anyone who reaches %s may use the server: --api-key restricts it", options.host)
    try:
        service = Service(options)
    except (InvarError, ServerError) as error:
        print(f"invar.tinker: {error}", file=sys.stderr)
        return 1
    config = uvicorn.Config(application(service), host=options.host, port=options.port, log_config=None, access_log=False, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again at its end: an orderly one
        signal.signal(number, lambda *_: None)
    server.run()
    return 0 if server.started else 1


if __name__ == "__main__":
    sys.exit(main())
