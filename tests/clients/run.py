#!/usr/bin/env python3
"""Runs other projects' clients, unmodified and pinned, against `invar serve models/tiny-math`: one line for each, exit code 1 when one
fails, 77 when all are skipped. Usage: run.py [--install] [NAME...] | --install-only (all sets, for later runs)

Each set of packages is a virtual environment build/venv-SET, made by --install (or $INVAR_TEST_CLIENTS=1) from
requirements-SET.txt and made again when that file changes. Without them, and where there is no registry, the clients are
skipped. tests/python/run_torch.py installs the set "torch" so. The lists are complete and installed without looking for dependencies; a new one is made with
    uv pip compile --universal --python-version 3.11 requirements-SET.in -o requirements-SET.txt [--excludes ...]"""

import concurrent.futures
import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from support import SKIPPED
from upstream import TINY_MATH, serving

HERE = pathlib.Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build"
UV = "uv==0.13.9"
CLIENT_S = 1200  # a hang: the longest takes 30 s alone
INSTALL_S = 600
OFFLINE = re.compile("dns error|name resolution|Connect|Network is unreachable|timed out|ProxyError|error sending request|"
                     r"\(from versions: none\)|No module named pip", re.I)
SETS = {  # the longest first
    "eval": ("lm_eval_harness", "llama_index_client", "instructor_client", "guidellm_client"),
    "anthropic": ("anthropic_client", "agent_requests", "option_table", "flag_table"),
    "openai": ("openai_client", "lora_client", "tool_forms", "langchain_client", "pydantic_ai_client", "openai_agents_client", "inspect_ai_client"),
    "litellm": ("litellm_client", "dspy_client"),
    "sglang": ("sglang_client", "sglang_script"),
    "router": ("router",),
    "verl": ("verl_client",),
    "tinker": ("tinker_client", "tinker_recipes"),
}
SERVE_THEMSELVES = {"tinker"}  # with another program than `invar serve`


class Offline(Exception):
    pass


def command(*words, timeout=INSTALL_S, **more):
    """Its output; Offline if the registry cannot be reached."""
    ran = subprocess.run(words, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         timeout=timeout, **more)
    if ran.returncode == 0:
        return ran.stdout
    if OFFLINE.search(ran.stdout):
        raise Offline(ran.stdout.strip().splitlines()[-1])
    raise RuntimeError(f"{' '.join(map(str, words))}\n{ran.stdout}")


def installer():
    folder = BUILD / "venv-uv"
    program = folder / "bin" / "uv"
    if not program.exists():
        command(sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary", ":all:", "--upgrade",
                "--target", folder, UV)
    return program


def stamp_of(name):
    return hashlib.sha256((HERE / f"requirements-{name}.txt").read_bytes() + sys.version.encode()).hexdigest()


def is_installed(name):
    stamp = BUILD / f"venv-{name}" / "stamp"
    return stamp.exists() and stamp.read_text() == stamp_of(name)


def uv(*words, **more):
    """Output of uv. A virtual environment takes it 0.1 s, and venv and pip 4 s of processor time."""
    environment = os.environ | {"UV_PYTHON_DOWNLOADS": "never"}
    if "PIP_INDEX_URL" in environment:
        environment.setdefault("UV_DEFAULT_INDEX", environment["PIP_INDEX_URL"])
    return command(installer(), *words, env=environment, **more)


def environment_with(folder, *words):
    """The Python of a new virtual environment, with what `uv pip install` is asked for."""
    uv("venv", "-q", "--python", sys.executable, folder)
    uv("pip", "install", "-q", "--python", f"{folder}/bin/python", *words)
    return f"{folder}/bin/python"


def install(name):
    folder = BUILD / f"venv-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    environment_with(folder, "--no-deps", "-r", HERE / f"requirements-{name}.txt")
    (folder / "stamp").write_text(stamp_of(name))


def ready(name, may_install):
    """None, or why the clients of a set cannot be run."""
    if is_installed(name):
        return None
    if not may_install:
        return f"build/venv-{name} is not there; tests/clients/run.py --install makes it"
    if sys.version_info < (3, 11):
        return "Python 3.11 or later is wanted"
    begin = time.monotonic()
    try:
        with open(BUILD / "venv-lock", "w", encoding="ascii") as lock:  # of tests that run at once
            fcntl.flock(lock, fcntl.LOCK_EX)
            if is_installed(name):
                return None
            install(name)
    except (Offline, subprocess.TimeoutExpired) as error:
        return f"its packages could not be fetched: {error}"
    print(f"installed build/venv-{name} in {time.monotonic() - begin:.0f} s", flush=True)
    return None


def with_bytecode(environment):
    """Packages are installed without bytecode; what a program imports is compiled once for all, in build/bytecode. Compiling
    takes most of an import's time: 6 s of 8 for torch."""
    kept = {key: value for key, value in environment.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(BUILD / "bytecode")}


def run(name, client):
    """Exit code and output of one client, with its own server."""
    own = name in SERVE_THEMSELVES
    with contextlib.nullcontext(0) if own else serving(TINY_MATH, "--admin-api-key", "admin") as port:
        environment = with_bytecode(os.environ) | {"INVAR_URL": f"http://127.0.0.1:{port}", "INVAR_ADMIN_KEY": "admin",
                                                   "INVAR_SGLANG_TRIALS": os.environ.get("INVAR_SGLANG_TRIALS", "4")}
        try:
            ran = subprocess.run([BUILD / f"venv-{name}" / "bin" / "python", HERE / f"{client}.py"], text=True, env=environment,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=CLIENT_S)
        except subprocess.TimeoutExpired as late:
            return 1, f"{(late.stdout or b'').decode(errors='replace')}\nnot done after {CLIENT_S} s"
    return ran.returncode, ran.stdout


def report(client, code, text, seconds):
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    if code == SKIPPED:
        print(f"SKIPPED: {client}: {last.removeprefix('SKIPPED: ')}", flush=True)
    elif code == 0:
        print(f"passed   {client}: {last} in {seconds:.0f} s", flush=True)
    else:
        print(f"FAILED   {client}: exit code {code}\n{text}", flush=True)


def timed(name, client, why):
    begin = time.monotonic()
    try:
        code, text = (SKIPPED, why) if why else run(name, client)
    except AssertionError as error:  # of the server
        code, text = 1, str(error)
    report(client, code, text, time.monotonic() - begin)
    return code


def install_all():
    """Every set, the ones that take long first. What fails here is tried again, and reported, by the test that needs it."""
    for name in ("torch", *sorted(SETS, reverse=True)):
        try:
            why = ready(name, True)
        except RuntimeError as error:
            why = str(error)
        if why:
            print(f"build/venv-{name}: {why}", flush=True)


def main(words):
    if words == ["--install-only"]:
        return install_all()
    may_install = "--install" in words or os.environ.get("INVAR_TEST_CLIENTS") == "1"
    names = [word for word in words if word != "--install"]
    known = [client for clients in SETS.values() for client in clients]
    for name in names:
        if name not in known:
            sys.exit(f"no client '{name}'; there are: {' '.join(known)}")
    wanted = {s: [c for c in clients if not names or c in names] for s, clients in SETS.items()}
    try:
        missing = {s: ready(s, may_install) for s in wanted if wanted[s]}
    except RuntimeError as error:
        sys.exit(f"FAILED   {error}")
    with concurrent.futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        jobs = [pool.submit(timed, s, client, missing[s]) for s in missing for client in wanted[s]]
        codes = [job.result() for job in jobs]
    print(f"{codes.count(0)} passed, {codes.count(SKIPPED)} skipped, {sum(code not in (0, SKIPPED) for code in codes)} failed")
    sys.exit(1 if any(code not in (0, SKIPPED) for code in codes) else 0 if 0 in codes else SKIPPED)


if __name__ == "__main__":
    main(sys.argv[1:])
