#!/usr/bin/env python3
"""run.py BUILD_FOLDER: a wheel of the folder's library, installed into an empty virtual environment, and the tests of the package
from there. Exit code 77 without pip or a registry."""
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
OFFLINE = ("No module named", "name resolution", "(from versions: none)", "Network is unreachable", "ensurepip is not available")


def main() -> int:
    build = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        python = f"{folder}/venv/bin/python"
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "1"]
        for words in (
            [sys.executable, "-m", "venv", f"{folder}/venv"],
            [*pip, "pytest"],
            [*pip, str(ROOT), "-C", f"build-dir={folder}/build", "-C", f"cmake.define.INVAR_PYTHON_PREBUILT={build}"],
        ):
            ran = subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder)
            if ran.returncode and any(text in ran.stdout for text in OFFLINE):
                print("  SKIPPED: python: needs venv, pip and a registry")
                return 77
            if ran.returncode:
                print(ran.stdout)
                return 1
        env = {**os.environ, "INVAR_SOURCE": str(ROOT)}
        env.pop("PYTHONPATH", None)
        words = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder, ROOT / "tests/python"]
        return subprocess.run(words, cwd=folder, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
