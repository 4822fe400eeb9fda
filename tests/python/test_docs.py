"""Every block of Python in the documents, and every example, runs and prints what a reader would expect. Blocks of a document run in
order in one namespace; a block without a language right after one, or after one paragraph, is what it prints. The package's tests run
what needs no torch, with its environment's all."""
import contextlib
import functools
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

from support import MODEL, ROOT, serving

HAS_TORCH = importlib.util.find_spec("torch") is not None and importlib.util.find_spec("trl") is not None
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
PYTHON = re.compile(r"^(>>> |import \w|from [\w.]+ import |trainer\.|llm\.)", re.M)
MARK = "---- end of block {}"
NEEDS_TORCH = re.compile(r"\btorch\b|\btrl\b")
NEEDS_TINKER = "tinker"  # documents and examples of that name: tests/clients/tinker_client.py runs them
SKIPPED = {"build", "shared"}  # of other people


@functools.cache
def documents():
    """Those with blocks of Python: path -> (code, wanted output or None)."""
    found = {}
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if not f.startswith((".", "build")) and f not in SKIPPED and f != "node_modules"]
        for name in files:
            path = pathlib.Path(folder) / name
            if path.suffix == ".md" and NEEDS_TINKER not in name.lower() and (blocks := blocks_of(path.read_text())):
                found[str(path.relative_to(ROOT))] = blocks
    return found


def blocks_of(text):
    fences = list(FENCE.finditer(text))
    out = []
    for i, fence in enumerate(fences):
        if fence[1] != "python":
            continue
        after = fences[i + 1] if i + 1 < len(fences) else None
        between = text[fence.end() : after.start()] if after else "\n\n\n\n"
        near = after is not None and after[1] == "" and between.strip().count("\n\n") == 0 and "\n#" not in between
        out.append((fence[2], after[2] if near and "print(" in fence[2] else None))
    return out


def test_blocks_have_a_language():
    """Python in a block without one would not be run."""
    for folder in ("", "docs", "docs/formats", "bench", "deploy"):
        for path in (ROOT / folder).glob("*.md"):
            for language, code in FENCE.findall(path.read_text()):
                assert language == "python" or not PYTHON.search(code), f"{path.name}: ```{language}\n{code}"


def test_there_are_documents():
    assert "docs/PYTHON.md" in documents() and len(documents()["docs/PYTHON.md"]) >= 7


@pytest.mark.parametrize("name", sorted(documents()))
def test_document(tmp_path, name):
    chosen = [block for block in documents()[name] if HAS_TORCH or not NEEDS_TORCH.search(block[0])]
    (tmp_path / "models").symlink_to(ROOT / "models")
    parts = [f"{code}\nprint({MARK.format(i)!r}, flush=True)\n" for i, (code, _) in enumerate(chosen)]
    ran = subprocess.run([sys.executable, "-c", "\n".join(parts)], cwd=tmp_path, text=True, capture_output=True)
    assert ran.returncode == 0, ran.stdout[-1000:] + ran.stderr[-3000:]
    rest = ran.stdout
    for i, (code, wanted) in enumerate(chosen):
        printed, _, rest = rest.partition(MARK.format(i) + "\n")
        if wanted is not None:
            lines = printed.splitlines()  # TRL writes lines of its own before them
            assert (lines[-wanted.count("\n") :] if NEEDS_TORCH.search(code) else lines) == wanted.splitlines(), code
        assert "print(" not in code or wanted is not None, f"{name}: a block prints, and its output is not shown:\n{code}"


# ---- examples


def rl_learns(out):
    before, after = map(int, re.search(r"^(\d+) of 500 problems right before, (\d+) after", out, re.M).groups())
    return after - before >= 100 and len(re.findall(r"^step \d+: mean reward 0.\d+, (\d+) of \1 tokens equal", out, re.M)) == 4


def rewards_rise(out):
    """Sampler and learner agree, and the last two rewards are well above the first."""
    rows = re.findall(r"^step \d+: (?:mean )?reward (\S+), (?:sampler and learner differ by 0, at most 0$|(\d+) of (\d+) )", out, re.M)
    found = [float(value) for value, equal, count in rows if equal == count]
    return len(found) == 6 and sum(found[-2:]) / 2 > found[0] + 0.2


EXAMPLES = {  # name: arguments, and what its output must have: patterns, or a function
    "quickstart.py": ((), (r"17 \* 6\?'.*\\n\\n102'", r"9 \+ 8\?'.*\\n\\n17'")),
    "chat.py": ((), (r"^102$", "replayed: every bit equal")),
    "async_stream.py": ((), (r"^102$", r"^17$", r"^abort$")),
    "structured_output.py": ((), (r"\A102\n102\n102\n102\n\Z",)),
    "rl_loop.py": ((), rl_learns),
    "slime_http.py": (("HOST", "6"), rewards_rise),
    "torch_train.py": ((MODEL, "2"), (r"weights \w{16} after 2 steps, those of invar.Trainer",)),
    "trl_grpo.py": ((MODEL, "6"), rewards_rise),
    "verl_http.py": (("HOST", "6"), rewards_rise),
}


def needs_torch(name):
    return re.search(r"^\s*(import|from) (torch|trl|invar\.torch|invar\.trl)\b", (ROOT / "examples" / name).read_text(), re.M)


def test_every_example_is_in_the_table():
    assert set(EXAMPLES) == {path.name for path in (ROOT / "examples").glob("*.py") if NEEDS_TINKER not in path.name}


# The torch environment has run the others as the package's.
@pytest.mark.parametrize("name", [name for name in EXAMPLES if bool(needs_torch(name)) == HAS_TORCH])
def test_example(name):
    arguments, wanted = EXAMPLES[name]
    assert len((ROOT / "examples" / name).read_text().splitlines()) <= 80
    with contextlib.ExitStack() as stack:
        if "HOST" in arguments:
            url = stack.enter_context(serving("--weights-python", sys.executable))
            arguments = [url.removeprefix("http://"), *arguments[1:]]
        ran = subprocess.run([sys.executable, f"examples/{name}", *arguments], cwd=ROOT, text=True, capture_output=True)
    assert ran.returncode == 0, ran.stdout[-1000:] + ran.stderr[-3000:]
    if callable(wanted):
        assert wanted(ran.stdout), ran.stdout
    else:
        assert all(re.search(pattern, ran.stdout, re.M) for pattern in wanted), ran.stdout
