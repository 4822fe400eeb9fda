"""EleutherAI's lm-evaluation-harness, unmodified, against `invar serve`: its local-completions model with the server's own
tokenizer, on tasks made here from tiny-math's problems (nothing is fetched). Its log-likelihoods are compared, digit for digit, with
those that `invar batch` finds without a server, and with sums over the rows of `invar logits`; its generations with `invar batch`'s."""

import functools
import importlib.util
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

from support import check, main, skip
from upstream import BINARY, TINY_MATH, serving

if importlib.util.find_spec("lm_eval") is None:
    skip("the lm_eval package is not installed")

LIMIT = int(os.environ.get("INVAR_LM_EVAL_LIMIT", "24" if os.environ.get("INVAR_TEST_LONG") else "12"))
BOUND = 2e-4  # of a sum: the law's own logarithm against this file's float64
scratch = tempfile.TemporaryDirectory()
ROOM = pathlib.Path(scratch.name)
TASK = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{context}}}}"
doc_to_target: {target}
target_delimiter: ""
{more}
"""
CHOICES = 'doc_to_choice: choices\nmetric_list: [{metric: acc}]'
UNTIL = 'generation_kwargs: {until: ["\\n"], max_gen_toks: 24, temperature: 0.0}\nmetric_list: [{metric: exact_match}]'


def write_tasks():
    lines = []
    for i in range(LIMIT):
        a, b = (i * 7) % 50, (i * 11) % 40
        lines.append({"context": f"{a} + {b} =", "gold": 0,
                      "target": f" {a + b}", "choices": [f" {a + b}", f" {a + b + 1}"]})
    data = ROOM / "sums.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tasks = ROOM / "tasks"
    tasks.mkdir()
    for name, kind, target, more in (("choose", "multiple_choice", "gold", CHOICES),
                                     ("until", "generate_until", '"{{target}}"', UNTIL)):
        (tasks / f"{name}.yaml").write_text(
            TASK.format(name="sums_" + name, data=data, kind=kind, target=target, more=more))
    return lines


LINES = write_tasks()


def harness(port):
    """Its samples, by task: each a list of (document, arguments, answers)."""
    out = ROOM / f"out{port}"
    arguments = (f"model=tiny-math,base_url=http://127.0.0.1:{port}/v1/completions,tokenizer_backend=remote,"
                 "tokenized_requests=True,num_concurrent=4,max_retries=1")
    ran = subprocess.run(
        [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments, "--batch_size", "5",
         "--tasks", "sums_choose,sums_until", "--include_path", str(ROOM / "tasks"), "--log_samples", "--output_path", str(out)],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(ROOM / "hf"), "OPENAI_API_KEY": "none"})
    check(ran.returncode == 0, ran.stdout)
    print("".join(f"   {line}\n" for line in ran.stdout.splitlines() if line.startswith("|")), end="")
    found = {}
    for file in out.rglob("samples_*.jsonl"):
        samples = sorted((json.loads(line) for line in file.open()), key=lambda s: s["doc_id"])
        found["choose" if "choose" in file.name else "until"] = samples
    check(set(found) == {"choose", "until"} and all(len(f) == LIMIT for f in found.values()), found.keys())
    return found


def batch(bodies):
    """The same bodies without a server."""
    asked, answered = ROOM / "asked.jsonl", ROOM / "answered.jsonl"
    answered.unlink(missing_ok=True)
    with asked.open("w") as f:
        for i, body in enumerate(bodies):
            f.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}) + "\n")
    subprocess.run([BINARY, "batch", TINY_MATH, "-i", asked, "-o", answered], check=True, stderr=subprocess.DEVNULL)
    return [json.loads(line)["response"]["body"]["choices"][0] for line in answered.open()]


@functools.cache
def ids_of(text):
    ran = subprocess.run([BINARY, "tokenize", TINY_MATH, "--text", text, "--json"], check=True, capture_output=True)
    return json.loads(ran.stdout)["ids"]


def summed_rows(context, ids):
    """The log-probability of the continuation, from the rows of logits."""
    path = ROOM / "logits.safetensors"
    subprocess.run([BINARY, "logits", TINY_MATH, "--ids", ",".join(map(str, ids)), "--out", path], check=True,
                   stdout=subprocess.DEVNULL)
    data = path.read_bytes()
    head_bytes = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8 : 8 + head_bytes])["logits"]
    vocabulary = head["shape"][1]
    total = 0.0
    for at in range(context, len(ids)):
        begin = 8 + head_bytes + head["data_offsets"][0] + 4 * vocabulary * (at - 1)
        row = struct.unpack_from(f"<{vocabulary}f", data, begin)
        top = max(row)
        total += row[ids[at]] - top - math.log(math.fsum(math.exp(v - top) for v in row))
    return total


@functools.cache  # both tests ask for them
def offline_pairs():
    """For each line the harness's two numbers: sums and greedy flags of both choices, added as the harness does."""
    pairs = [(line["context"], choice) for line in LINES for choice in line["choices"]]
    ids = [(ids_of(a), ids_of(a + b)) for a, b in pairs]
    choices = batch([{"prompt": whole, "temperature": 0, "max_tokens": 1, "logprobs": 1, "echo": True, "seed": 1234}
                     for _, whole in ids])
    out = []
    for (context, whole), choice in zip(ids, choices):
        values = choice["logprobs"]["token_logprobs"][len(context) : -1]
        tops = choice["logprobs"]["top_logprobs"][len(context) : -1]
        out.append((sum(values), all(v == max(t.values()) for v, t in zip(values, tops))))
        rows = summed_rows(len(context), whole)
        check(abs(out[-1][0] - rows) < BOUND, out[-1], rows)
    return out


def test_harness():
    with serving(TINY_MATH) as port:
        found = harness(port)
    offline = offline_pairs()
    online = [(float(value), str(greedy) == "True") for s in found["choose"] for [[value, greedy]] in s["resps"]]
    check(online == offline, "log-likelihoods", online, offline)
    check(any(online[i] != online[i + 1] for i in range(0, len(online), 2)), "a control: wrong sums score otherwise")
    generated = batch([{"prompt": ids_of(line["context"]), "max_tokens": 24, "temperature": 0, "seed": 1234,
                        "stop": ["\n"]} for line in LINES])
    check([s["resps"][0][0] for s in found["until"]] == [choice["text"] for choice in generated])
    print(f"   {len(online)} log-likelihoods and {LIMIT} generations are those of invar batch")


def test_other_sums_are_seen():
    """A control: a server with another order of additions has other log-likelihoods."""
    with serving(TINY_MATH, "--numerics", "vanilla") as port:
        found = harness(port)
    online = [float(value) for s in found["choose"] for [[value, _]] in s["resps"]]
    check(online != [value for value, _ in offline_pairs()])


main(test_harness, test_other_sums_are_seen)
scratch.cleanup()
