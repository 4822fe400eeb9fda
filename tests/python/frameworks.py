#!/usr/bin/env python3
"""frameworks.py BUILD_FOLDER [--install]: the package of the folder's library, and its tests with torch and TRL. They run with
$INVAR_TORCH_PYTHON or build/venv-frameworks, which --install (or $INVAR_TEST_TORCH=1) makes from requirements-frameworks.txt: 5 GB.
Exit code 77 without either, or without a registry."""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from run import OFFLINE, ROOT

HERE = pathlib.Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements-frameworks.txt"


def skip(why):
    print(f"  SKIPPED: frameworks: {why}")
    sys.exit(77)


def command(*words, **more):
    ran = subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    if ran.returncode and any(text in ran.stdout for text in OFFLINE):
        skip("needs venv, pip and a registry")
    if ran.returncode:
        sys.exit(ran.stdout)


def python_of(build, may_install):
    given = os.environ.get("INVAR_TORCH_PYTHON")
    if given:
        return given
    folder = build / "venv-frameworks"
    python, stamp = folder / "bin/python", folder / "stamp"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    if not may_install:
        skip("build/venv-frameworks is not there; tests/python/frameworks.py BUILD --install makes it")
    shutil.rmtree(folder, ignore_errors=True)
    command(sys.executable, "-m", "venv", folder)
    command(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "-r", REQUIREMENTS, "pytest",
            "pluggy", "iniconfig", "cffi", "pycparser")  # fmt: skip
    stamp.write_text(wanted)
    return str(python)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    python = python_of(build, "--install" in sys.argv or os.environ.get("INVAR_TEST_TORCH") == "1")
    with tempfile.TemporaryDirectory() as folder:
        site = f"{folder}/site"
        command(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target", site, str(ROOT),
                "-C", f"build-dir={folder}/build", "-C", f"cmake.define.INVAR_PYTHON_PREBUILT={build}", cwd=folder)  # fmt: skip
        environment = {**os.environ, "INVAR_SOURCE": str(ROOT), "PYTHONPATH": site, "INVAR_PROGRAM": f"{site}/bin/invar",
                       "OMP_NUM_THREADS": "1"}  # fmt: skip
        words = [python, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--rootdir", folder, HERE / "test_frameworks.py"]
        return subprocess.run(words, cwd=folder, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
