"""guidellm, unmodified: its program measures the server with streamed chats. torch, which it needs
for a loop over its data, is larger than two gigabytes and is not installed: a stub provides the few names that it uses."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from recorder import ROOT, TOO_LONG, posts
from support import check, main, skip
from upstream import TINY_MATH

if importlib.util.find_spec("guidellm") is None:
    skip("the guidellm package is not installed")
scratch = tempfile.TemporaryDirectory()
ROOM = pathlib.Path(scratch.name)
STAND_IN = {
    "torch/__init__.py": "from torch import utils\nclass Generator:\n    def manual_seed(self, seed):\n        return self\n"
                         "class Tensor:\n    pass\nclass nn:\n    class Module:\n        pass\n",
    "torch/utils/__init__.py": "",
    "torch/utils/data/__init__.py": "def get_worker_info():\n    return None\n",
    "torch/utils/data/dataset.py": "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass IterableDataset(Generic[T]):\n    pass\n",
    "torch/utils/data/dataloader.py": "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass DataLoader(Generic[T]):\n"
                                      "    def __init__(self, dataset, collate_fn, **_):\n"
                                      "        self.dataset, self.collate_fn = dataset, collate_fn\n"
                                      "    def __iter__(self):\n        return (self.collate_fn([item]) for item in self.dataset)\n",
}
REQUESTS = 6


def prepare():
    for name, text in STAND_IN.items():
        file = ROOM / "stand_in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    lines = [{"prompt": TOO_LONG if a == 3 else f"What is {a} + {a + 1}?", "output_tokens_count": 8} for a in range(REQUESTS)]
    (ROOM / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def measure():
    out = ROOM / "out.json"
    ran = subprocess.run(
        [pathlib.Path(sys.executable).parent / "guidellm", "run", "--backend", f"kind=openai_http,target={ROOT}",
         "--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={REQUESTS}",
         "--data", f"kind=json_file,path={ROOM / 'data.jsonl'}", "--tokenizer", f"kind=hf_auto,model={TINY_MATH}",
         "--output", f"kind=json,path={out}", "--disable-console"],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900, cwd=ROOM,
        env=os.environ | {"PYTHONPATH": str(ROOM / "stand_in"), "HF_HUB_OFFLINE": "1", "HF_HOME": str(ROOM / "hf")})
    check(ran.returncode == 0, ran.stdout)
    return json.loads(out.read_text())["benchmarks"][0]


def test_measures():
    """Prompts that are too long are counted as errors, and nothing else is."""
    requests = measure()["requests"]
    check(len(requests["errored"]) == 1 and len(requests["successful"]) == REQUESTS - 1, requests)
    asked = [e for e in posts() if e[1].get("stream")]
    check(sorted(e[2] for e in asked) == [200] * (REQUESTS - 1) + [400] and all(e[0] == "/v1/chat/completions" for e in asked))
    for request in requests["successful"]:
        check(request["output_metrics"]["text_tokens"] == 8, request["output_metrics"])


prepare()
main(test_measures)
scratch.cleanup()
