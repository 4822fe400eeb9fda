"""SGLang's own python/sglang/test/test_deterministic.py, unmodified, against `invar serve`.

$INVAR_SGLANG_SCRIPT names the script, in a tree as SGLang's repository or wheel has it (profiler.py one folder up,
long_prompt.txt next to it); an installed sglang is found without it. The script is run from links in a separate folder, because
the package's __init__ imports torch, which the script does not use. $INVAR_SGLANG_TRIALS: its --n-trials (8)."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from support import check, main, skip
from upstream import derived_model, serving

TRIALS = os.environ.get("INVAR_SGLANG_TRIALS", "8")
# The script draws its prompts from an unseeded generator, and of few draws one prompt may get none.
SEEDED = "import random, runpy, sys; random.seed({seed}); runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
SEED = 1


def find_script():
    named = os.environ.get("INVAR_SGLANG_SCRIPT")
    if named:
        return pathlib.Path(named).resolve()
    spec = importlib.util.find_spec("sglang")
    if not spec or not spec.submodule_search_locations:
        skip("SGLang's script is not installed: INVAR_SGLANG_SCRIPT names it")
    return pathlib.Path(spec.submodule_search_locations[0]) / "test" / "test_deterministic.py"


SCRIPT = find_script()
if importlib.util.find_spec("requests") is None:
    skip("SGLang's script needs the requests package")
SOURCE = SCRIPT.read_text()
scratch = tempfile.TemporaryDirectory()


def linked_tree():
    tree = pathlib.Path(scratch.name) / "tree"
    (tree / "sglang" / "test").mkdir(parents=True)
    for folder in ("sglang", "sglang/test"):
        (tree / folder / "__init__.py").touch()  # so that an installed package is not taken instead
    (tree / "sglang" / "profiler.py").symlink_to(SCRIPT.parents[1] / "profiler.py")
    for name in (SCRIPT.name, "long_prompt.txt"):
        (tree / "sglang" / "test" / name).symlink_to(SCRIPT.parent / name)
    return tree


TREE = linked_tree()
LONG = derived_model(scratch.name, "long", max_position_embeddings=32768)
# Its radix_cache mode draws token ids up to 50,000: a vocabulary for them, with random weights.
WIDE = derived_model(scratch.name, "wide", with_weights=False, vocab_size=50304, num_hidden_layers=2,
                     layer_types=["full_attention"] * 2)


def script(port, mode, *flags):
    check(f'"{mode}"' in SOURCE, "the script has no mode", mode)
    code = SEEDED.format(seed=SEED, module="sglang.test." + SCRIPT.stem)
    command = [sys.executable, "-c", code, "--host", "127.0.0.1", "--port", str(port)]
    ran = subprocess.run([*command, "--test-mode", mode, "--n-trials", TRIALS, *flags], cwd=TREE, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900,
                         env=os.environ | {"PYTHONIOENCODING": "utf-8"})
    check(ran.returncode == 0, ran.stdout)
    for line in ran.stdout.splitlines():
        if "nique samples" in line or "TEST" in line or "identical across" in line:
            print(f"   {mode}: {line.strip()}")
    return ran.stdout


def unique(text):
    return [int(n) for n in re.findall(r"Unique samples: (\d+)", text)]


def test_modes():
    with serving(LONG, "--allow-flush", "--kv-cache-memory", "512M") as port:
        check(unique(script(port, "single")) == [1])
        check(unique(script(port, "single", "--temperature", "1")) == [1])
        found = unique(script(port, "prefix"))
        check(len(found) == 4 and set(found) == {1}, found)
        if "logprobs are identical" in SOURCE.lower():
            check("identical across all batch sizes" in script(port, "prefix", "--return-logprob"))


def test_mixed():
    """Older versions of the script; from the 11th trial on with the whole long prompt of 19,000 tokens."""
    if '"mixed"' not in SOURCE:
        print("   this version of the script has no mixed")
        return
    with serving(LONG, "--kv-cache-memory", "512M") as port:
        found = unique(script(port, "mixed", "--max-new-tokens", "40"))
        check(found[:2] == [1, 1] and found[2] == (int(TRIALS) > 10), found)


def test_radix_cache():
    if '"radix_cache"' not in SOURCE:
        print("   this version of the script has no radix_cache")
        return
    with serving(WIDE, "--allow-flush", "--load-format", "dummy") as port:
        text = script(port, "radix_cache")
        check("TEST PASSED" in text, text)
        # Decoding against prefill, too, which its authors expect to differ.
        check(len(re.findall(r"Logprob match: +✓ YES", text)) == 2 and "✗" not in text, text)


def decode_and_prefill(numerics):
    with serving(LONG, "--allow-flush", "--kv-cache-memory", "512M", "--numerics", numerics) as port:
        return script(port, "p_vs_d")


def test_decode_is_prefill():
    if '"p_vs_d"' not in SOURCE:
        print("   this version of the script has no p_vs_d")
        return
    text = decode_and_prefill("invar")
    count = int(TRIALS) * (int(TRIALS) + 1) // 2
    check(text.count("✅ Token match") == count and text.count("✅ Logprobs match") == count and "❌" not in text, text)
    check("❌ Logprobs mismatch" in decode_and_prefill("vanilla"), "a control: sums in other orders are seen")


main(*[f for name, f in sorted(globals().items()) if name.startswith("test_")])
scratch.cleanup()
