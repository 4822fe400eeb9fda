#!/usr/bin/env python3
"""run_torch.py BUILD_FOLDER: the tests of invar.torch, of TRL, and of answers against transformers, with the folder's library, in
build/venv-torch (tests/clients/run.py).
Exit code 77 without its packages."""
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/clients"))
import run as clients


def package(folder: pathlib.Path, build: pathlib.Path, python: pathlib.Path) -> None:
    """The package as the wheel has it."""
    folder.mkdir()
    for source in (ROOT / "python/invar").iterdir():
        (folder / source.name).symlink_to(source)
    (folder / "libinvar.so").symlink_to(build / "libinvar_python.so")
    headers = [ROOT / "include" / name for name in ("invar_status.h", "invar.h", "invar_model.h", "invar_train.h", "invar_ops.h")]
    subprocess.run([python, ROOT / "python/write_ffi.py", *headers, folder / "_ffi.py", "False"], check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    build = pathlib.Path(sys.argv[1]).resolve()
    given = os.environ.get("INVAR_TORCH_PYTHON")  # a Python that has torch, instead of the environment
    why = None if given else clients.ready("torch", os.environ.get("INVAR_TEST_CLIENTS") == "1")
    if why:
        print(f"  SKIPPED: invar.torch: {why}")
        return 77
    python = pathlib.Path(given or clients.BUILD / "venv-torch/bin/python")
    with tempfile.TemporaryDirectory() as folder:
        package(pathlib.Path(folder) / "invar", build, python)
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        env = {**clients.with_bytecode(os.environ), "INVAR_SOURCE": str(ROOT), "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
        env["INVAR_PROGRAM"] = str(build / "invar")
        env.setdefault("OMP_WAIT_POLICY", "passive")  # torch's threads wait without the processor
        tests = [ROOT / f"tests/python/test_{name}.py" for name in ("torch", "torch_cuda", "answers", "frameworks", "docs", "peft")]
        words = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder, *tests]
        return subprocess.run([*words, *sys.argv[2:]], cwd=folder, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
