"""slime with a running `invar serve`, as its external engine: slime_http.py [HOST:PORT] [STEPS]

slime itself needs one flag, and weights through a folder that both see:
    invar serve MODEL --port 30000
    python train.py --rollout-external-engine-addrs HOST:30000 \\
        --update-weight-mode full --update-weight-transport disk --update-weight-disk-dir DIR ...
This file makes the same requests with a small learner, and compares every log-probability."""
import json
import pathlib
import sys
import tempfile
import urllib.request

from invar import Policy, PolicySequence, Sequence, Trainer

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:30000"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 3


def call(route, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{address}{route}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


def rollout(prompt_ids, seed):
    """slime/rollout/sglang_rollout.py: generate()"""
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 16, "stop": None, "stop_token_ids": None,
                "skip_special_tokens": False, "no_stop_trim": True, "spaces_between_special_tokens": False,
                "sampling_seed": seed}  # fmt: skip
    meta = call("/generate", {"input_ids": prompt_ids, "sampling_params": sampling, "return_logprob": True})["meta_info"]
    return [(token, logprob) for logprob, token, _ in meta["output_token_logprobs"]]


def item_of(prompt_ids, answer):
    ids, n = [*prompt_ids, *(token for token, _ in answer)], len(prompt_ids)
    mask = [float(t >= n) for t in range(len(ids))]
    return PolicySequence(Sequence(ids, mask), [0.0] * n + [logprob for _, logprob in answer], 0.0)


def update(folder, version):
    """slime/backends/megatron_utils: pause, flush, load, continue"""
    call("/pause_generation", {})
    call("/flush_cache")
    call("/update_weights_from_disk", {"model_path": str(folder), "weight_version": str(version)})
    call("/continue_generation", {})


info = call("/server_info")  # slime reads tp_size and a few flags of it
trainer = Trainer(info["model_path"], pass_tokens=512)
policy, group = Policy("grpo"), 4
prompts = [call("/tokenize", {"prompt": text})["tokens"] for text in ("2 + 2 =", "3 + 4 =")]
with tempfile.TemporaryDirectory() as scratch:
    for step in range(steps):
        answers = [(p, rollout(p, 1000 * step + i)) for p in prompts for i in range(group)]
        items = [item_of(*answer) for answer in answers]
        rewards = [-float(len(answer)) for _, answer in answers]
        for item, advantage in zip(items, policy.advantages([i // group for i in range(len(items))], rewards)):
            item.advantage = float(advantage)
        report = trainer.policy_step(policy, items, learning_rate=1e-5, max_norm=1.0)
        print(f"step {step}: {report.equal} of {report.tokens} tokens equal in every bit")
        assert report.equal == report.tokens > 0
        folder = pathlib.Path(scratch) / f"step-{step}"
        trainer.export(folder)
        update(folder, step + 1)
