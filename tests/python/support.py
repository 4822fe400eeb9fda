"""A server of the installed program."""
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import threading

ROOT = pathlib.Path(os.environ["INVAR_SOURCE"])
MODEL = str(ROOT / "models/tiny-math")
PROGRAM = os.environ.get("INVAR_PROGRAM") or pathlib.Path(sys.executable).parent / "invar"


@contextlib.contextmanager
def serving(*flags):
    """Its URL."""
    command = [PROGRAM, "serve", MODEL, "--port", "0", "--threads", "2", "--disable-log-requests", *flags]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        try:
            lines = []
            for line in server.stderr:
                lines.append(line)
                if found := re.search(r"listening on (http://\S+)", line):
                    break
            else:
                raise AssertionError("".join(lines))
            threading.Thread(target=server.stderr.read, daemon=True).start()
            yield found[1]
        finally:
            server.terminate()
