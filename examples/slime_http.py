"""slime with a running `invar serve`, as its external engine: slime_http.py [HOST:PORT] [STEPS]

slime itself needs one flag, and weights through a folder that both see:
    invar serve MODEL --port 30000
    python train.py --rollout-external-engine-addrs HOST:30000 \\
        --update-weight-mode full --update-weight-transport disk --update-weight-disk-dir DIR ...
This file makes the same requests with a small learner, and compares every log-probability."""
import json
import pathlib
import re
import sys
import tempfile
import urllib.request

from invar import Policy, PolicySequence, Sequence, Trainer

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:30000"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 8


def call(route, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{address}{route}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


def rollout(prompt_ids, seed):
    """slime/rollout/sglang_rollout.py: generate()"""
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 8, "stop": None, "stop_token_ids": None,
                "skip_special_tokens": False, "no_stop_trim": True, "spaces_between_special_tokens": False,
                "sampling_seed": seed}  # fmt: skip
    answer = call("/generate", {"input_ids": prompt_ids, "sampling_params": sampling, "return_logprob": True})
    return answer["text"], [(token, logprob) for logprob, token, _ in answer["meta_info"]["output_token_logprobs"]]


def reward(text, wanted):
    """1 for the right number first, less the further it is away, 0 for none."""
    found = re.match(r"\s*(\d{1,6})", text)
    return 1 / (1 + abs(int(found[1]) - wanted)) if found else 0.0


def item_of(prompt_ids, answer, advantage):
    ids, n = [*prompt_ids, *(token for token, _ in answer)], len(prompt_ids)
    mask = [float(t >= n) for t in range(len(ids))]
    return PolicySequence(Sequence(ids, mask), [0.0] * n + [logprob for _, logprob in answer], advantage)


def update(folder, version):
    """slime/backends/megatron_utils: pause, flush, load, continue"""
    call("/pause_generation", {})
    call("/flush_cache")
    call("/update_weights_from_disk", {"model_path": str(folder), "weight_version": str(version)})
    call("/continue_generation", {})


info = call("/server_info")  # slime reads tp_size and a few flags of it
trainer = Trainer(info["model_path"], pass_tokens=512)
policy, group = Policy("grpo"), 8
sums = [(a, b, call("/tokenize", {"prompt": f"{a} + {b} ="})["tokens"]) for a, b in ((2, 2), (13, 4), (30, 12), (25, 17))]
with tempfile.TemporaryDirectory() as scratch:
    for step in range(steps):
        answers = [(a + b, ids, *rollout(ids, 1000 * step + i)) for a, b, ids in sums for i in range(group)]
        rewards = [reward(text, wanted) for wanted, _, text, _ in answers]
        advantages = policy.advantages([i // group for i in range(len(answers))], rewards)
        items = [item_of(ids, answer, advantage) for (_, ids, _, answer), advantage in zip(answers, advantages)]
        report = trainer.policy_step(policy, items, learning_rate=1e-4, max_norm=1.0)
        mean = sum(rewards) / len(rewards)
        print(f"step {step}: mean reward {mean:.3f}, {report.equal} of {report.tokens} tokens equal in every bit", flush=True)
        assert report.equal == report.tokens > 0
        folder = pathlib.Path(scratch) / f"step-{step}"
        trainer.export(folder)
        update(folder, step + 1)
