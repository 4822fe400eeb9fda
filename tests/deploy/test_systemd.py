"""The systemd unit: its syntax, with and without the drop-in for GPUs; its exposure as systemd rates it; and that its filter
of system calls lets through what a server uses from its start to its end. Needs systemd-analyze, for the last strace."""

import asyncio
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
UNITS = ROOT / "deploy" / "systemd"
sys.path.insert(0, str(ROOT / "tests" / "clients"))
import wire  # noqa: E402
from served import BINARY, TINY_MATH  # noqa: E402
from support import SKIPPED  # noqa: E402

EXPOSURE_MAX, GPU_EXPOSURE_MAX = 15, 20  # in tenths; 100 is a service without any restriction
START_S = 120


def run(*words):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=120)


def copy_unit(folder, gpu, spoil=None):
    """The unit with the program of this build."""
    text = (UNITS / "invar.service").read_text().replace("/usr/bin/invar", str(pathlib.Path(BINARY).resolve()))
    unit = folder / "invar.service"
    unit.write_text(text + (spoil or ""))
    if gpu:
        (folder / "invar.service.d").mkdir(exist_ok=True)
        shutil.copy(UNITS / "gpu.conf", folder / "invar.service.d")
    return unit


def check_unit(gpu, missing):
    with tempfile.TemporaryDirectory() as name:
        unit = copy_unit(pathlib.Path(name), gpu)
        ran = run("systemd-analyze", "verify", "--man=no", unit)
        if ran.returncode or ran.stderr.strip():
            missing.append(f"verify, gpu {gpu}: {ran.stdout}{ran.stderr}")
        most = GPU_EXPOSURE_MAX if gpu else EXPOSURE_MAX
        ran = run("systemd-analyze", "security", "--offline=true", f"--threshold={most}", unit)
        rated = re.search(r"exposure level for invar.service: ([0-9.]+)", ran.stdout)
        print(f"exposure{' with GPUs' if gpu else ''}: {rated[1] if rated else '?'} of 10")
        if ran.returncode or not rated:
            missing.append(f"security, gpu {gpu}: wanted at most {most / 10}: {ran.stdout[-500:]}{ran.stderr}")


def check_controls(missing):
    """The checks find a directive that is none, and a unit without restrictions."""
    with tempfile.TemporaryDirectory() as name:
        ran = run("systemd-analyze", "verify", "--man=no", copy_unit(pathlib.Path(name), False, "[Service]\nPrivateDevicse=yes\n"))
        if "PrivateDevicse" not in ran.stderr:
            missing.append("control: verify does not find a wrong directive")
        unit = pathlib.Path(name) / "open.service"
        unit.write_text(f"[Service]\nExecStart={pathlib.Path(BINARY).resolve()} serve\n")
        if run("systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", unit).returncode == 0:
            missing.append("control: a unit without restrictions is rated as well")


def filter_set(words):
    """The system calls of SystemCallFilter= words, groups expanded."""
    found = set()
    for word in words:
        if not word.startswith("@"):
            found.add(word)
            continue
        for line in run("systemd-analyze", "syscall-filter", word).stdout.splitlines():
            item = line.strip()
            if line.startswith("    ") and item and not item.startswith("#"):
                found |= filter_set([item])
    return found


def allowed_calls():
    """Lines of the unit in their order: the first makes an allow list, those with ~ take away. @default is always in it."""
    allowed = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", (UNITS / "invar.service").read_text(), re.M):
        if line.startswith("~"):
            allowed -= filter_set(line[1:].split())
        else:
            allowed |= filter_set(["@default", *line.split()])
    return allowed


async def use(port):
    body = {"prompt": [17, 289], "max_tokens": 20, "ignore_eos": True, "stream": True}
    await wire.ask_once(port, wire.post("/v1/completions", body))
    await wire.ask_once(port, wire.get("/metrics"))


def traced_calls(missing):
    """What a server and its engine call: start, requests, a reload, a restart of the engine, the end."""
    with tempfile.TemporaryDirectory() as name:
        trace, log = pathlib.Path(name) / "trace", pathlib.Path(name) / "log"
        with open(log, "w", encoding="utf-8") as err:
            process = subprocess.Popen(["strace", "-f", "-qq", "-o", str(trace), str(BINARY), "serve", str(TINY_MATH), "--port", "0",
                                        "--threads", "2"], stderr=err, env=os.environ | {"NOTIFY_SOCKET": f"{name}/none"})
        try:
            asyncio.run(drive(log, trace, process))
        finally:
            process.wait(60)
        if process.returncode:
            missing.append(f"the traced server: exit code {process.returncode}: {log.read_text()[-500:]}")
        return set(re.findall(r"^\d+ +([a-z_0-9]+)\(", trace.read_text(errors="replace"), re.M))


async def await_log(log, pattern):
    for _ in range(START_S * 20):
        found = re.search(pattern, log.read_text())
        if found:
            return found
        await asyncio.sleep(0.05)
    raise SystemExit(f"no {pattern} in: {log.read_text()[-500:]}")


async def drive(log, trace, process):
    port = int((await await_log(log, r"listening on http://127.0.0.1:(\d+)"))[1])
    server = int(trace.read_text(errors="replace").split()[0])
    try:
        await use(port)
        engine = pathlib.Path(f"/proc/{server}/task/{server}/children").read_text().split()
        os.kill(int(engine[0]), signal.SIGKILL)
        await await_log(log, "the engine process is back")
        os.kill(server, signal.SIGHUP)
        await await_log(log, "SIGHUP: ")
        await use(port)
    finally:
        os.kill(server, signal.SIGTERM)


def check_calls(missing):
    allowed, used = allowed_calls(), traced_calls(missing)
    print(f"{len(used)} different system calls, {len(used & allowed)} of them in the {len(allowed)} of the filter")
    if used - allowed:
        missing.append(f"system calls that the unit forbids: {sorted(used - allowed)}")
    wrong = allowed & {"mount", "ptrace", "kexec_load", "nice"}
    if len(used) < 30 or wrong:
        missing.append(f"control: {len(used)} calls seen, wanted 30 or more; {sorted(wrong)} in the list")


def main():
    if not (shutil.which("systemd-analyze") and os.access(BINARY, os.X_OK)):
        print("SKIPPED: systemd unit: needs systemd-analyze and the program")
        return SKIPPED
    missing = []
    check_unit(False, missing)
    check_unit(True, missing)
    check_controls(missing)
    if shutil.which("strace") and run("strace", "-o", "/dev/null", "true").returncode == 0:
        check_calls(missing)
    else:
        print("SKIPPED: the unit's filter of system calls: needs strace")
    print("\n".join(["FAILED:", *missing]) if missing else "the unit is valid and lets the server through")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
