"""Shared by the tests with other projects' programs: their servers, and models derived from tiny-math."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time

BINARY = os.environ.get("INVAR_BINARY", "build/invar")
TINY_MATH = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny-math"
START_S = 60


@contextlib.contextmanager
def serving(model, *flags):
    """A server of `model` on a free port; yields the port."""
    with tempfile.TemporaryFile("w+") as log:
        command = [BINARY, "serve", str(model), "--port", "0", "--threads", "2", "--disable-log-requests", *flags]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        try:
            yield wait_for_port(server, log)
        finally:
            server.terminate()
            code = server.wait(60)
        if code != 0:
            log.seek(0)
            raise AssertionError(f"the server ended with {code}: {log.read()}")


def wait_for_port(server, log):
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.poll() is None:
        log.seek(0)
        found = re.search(r'listening on http://.*:(\d+)[\n"]', log.read())
        if found:
            return int(found[1])
        time.sleep(0.02)
    log.seek(0)
    raise AssertionError(f"no server: {log.read()}")


def derived_model(folder, name, with_weights=True, **changes):
    """tiny-math with another configuration, in its own folder."""
    made = pathlib.Path(folder) / name
    made.mkdir()
    config = json.loads((TINY_MATH / "config.json").read_text()) | changes
    (made / "config.json").write_text(json.dumps(config))
    for file in TINY_MATH.iterdir():
        if file.name.startswith(("tokenizer", "generation_config", "chat_template")):
            (made / file.name).symlink_to(file)
        if with_weights and file.name == "model.safetensors":
            (made / file.name).symlink_to(file)
    return made
