"""The Python that takes weights in the tests of RL stacks: $INVAR_TORCH_PYTHON, this one if it has torch, or build/venv-torch (run.py); it
runs the package from the source tree. No other package than torch is used."""

import importlib.machinery
import os
import pathlib
import sys

import run as clients
from support import skip

ROOT = pathlib.Path(__file__).resolve().parents[2]


def find():
    """Its path; the test is skipped where there is none."""
    given = os.environ.get("INVAR_TORCH_PYTHON")
    if not given and importlib.machinery.PathFinder.find_spec("torch"):
        return sys.executable
    why = None if given else clients.ready("torch", os.environ.get("INVAR_TEST_CLIENTS") == "1")
    if why:
        skip(f"weights: {why}")
    return given or str(clients.BUILD / "venv-torch" / "bin" / "python")


def environment():
    """Of a server that starts it."""
    path = os.pathsep.join(filter(None, (str(ROOT / "python"), os.environ.get("PYTHONPATH"))))
    return clients.with_bytecode(os.environ) | {"PYTHONPATH": path}


def run_with_torch():
    """Runs this program again with that Python, unless this one has torch."""
    python = find()
    if not importlib.machinery.PathFinder.find_spec("torch"):
        os.execve(python, [python, *sys.argv], environment() | {"INVAR_TORCH_PYTHON": python})
