"""A server of `python -m invar.tinker` from the source tree, for tests with the unmodified tinker client: the package is that of the
tree with the library of the build. torch, which the cookbook imports, is that of the set "torch"."""

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from support import SKIPPED

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("INVAR_BUILD", ROOT / "build"))
KEY = "tml-test"
NAME = "Qwen/Qwen3-8B-Base"  # as which the tiny models are served: a name whose renderer the cookbook knows
START_S = 120


def add_torch():
    """The end of the path has torch's environment, if this one has no torch."""
    if importlib.util.find_spec("torch") is None:
        sys.path += [str(path) for path in BUILD.glob("venv-torch/lib/python3*/site-packages")]
    if importlib.util.find_spec("torch") is None:
        print("SKIPPED: build/venv-torch is not there; tests/python/run_torch.py --install makes it")
        sys.exit(SKIPPED)


@contextlib.contextmanager
def package():
    """A folder with the package and its declarations."""
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder) / "invar"
        made.mkdir()
        for file in (ROOT / "python/invar").iterdir():
            (made / file.name).symlink_to(file)
        headers = [ROOT / "include" / name for name in ("invar_status.h", "invar.h", "invar_model.h", "invar_train.h", "invar_ops.h")]
        subprocess.run([sys.executable, ROOT / "python/write_ffi.py", *headers, made / "_ffi.py", "False"], check=True, stdout=subprocess.DEVNULL)
        yield folder


@contextlib.contextmanager
def hub(model, **changes):
    """A cache of Hugging Face in which NAME has the model's tokenizer; the environment that names it."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder) / ("models--" + NAME.replace("/", "--"))
        snapshot = place / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        (place / "refs").mkdir()
        (place / "refs/main").write_text("0" * 40)
        for file in pathlib.Path(model).iterdir():
            if file.suffix in (".json", ".jinja") and file.name not in ("oracle.json",):
                shutil.copyfile(file, snapshot / file.name)
        yield {"HF_HUB_CACHE": folder, "HF_HOME": folder, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", **changes}


class Server:
    def __init__(self, process, log, port):
        self.process, self.log, self.port = process, log, port
        self.url = f"http://127.0.0.1:{port}"

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        """Its log, after it ended as it should."""
        self.process.terminate()
        code = self.process.wait(120)
        assert code == 0, f"the server ended with {code}: {self.text()}"
        return self.text()


@contextlib.contextmanager
def serving(path, model, *flags):
    """path: of package()."""
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "invar.tinker", str(model), "--port", "0", "--threads", "2", "--device", "cpu", "--api-key", KEY, *flags]
        environment = os.environ | {"PYTHONPATH": path, "INVAR_LIBRARY": str(BUILD / "libinvar_python.so")}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=ROOT)
        try:
            end = time.monotonic() + START_S
            while time.monotonic() < end and process.poll() is None:
                log.seek(0)
                found = re.search(r"running on http://.*:(\d+)", log.read())
                if found:
                    yield Server(process, log, int(found[1]))
                    break
                time.sleep(0.05)
            else:
                log.seek(0)
                raise AssertionError(f"no server: {log.read()}")
        finally:
            process.terminate()
            process.wait(120)


def with_tokens(model, folder, names):
    """The model with more tokens, in the place of rows that have none."""
    made = pathlib.Path(folder) / "model"
    made.mkdir()
    for file in pathlib.Path(model).iterdir():
        if file.name not in ("tokenizer.json", "tokenizer_config.json"):
            (made / file.name).symlink_to(file)
    data = json.loads((pathlib.Path(model) / "tokenizer.json").read_text())
    first = 1 + max([*data["model"]["vocab"].values(), *(token["id"] for token in data["added_tokens"])])
    there = {token["content"] for token in data["added_tokens"]} | set(data["model"]["vocab"])
    for i, name in enumerate(sorted(set(names) - there)):
        data["added_tokens"].append({"id": first + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
                                     "normalized": False, "special": True})
    (made / "tokenizer.json").write_text(json.dumps(data))
    config = json.loads((pathlib.Path(model) / "tokenizer_config.json").read_text())
    config.pop("added_tokens_decoder", None)
    (made / "tokenizer_config.json").write_text(json.dumps(config))
    return made
