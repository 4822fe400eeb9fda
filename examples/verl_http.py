"""verl's weight updates into a running `invar serve`: verl_http.py [HOST:PORT] [STEPS]; needs torch and transformers

    invar serve MODEL --port 30000
    engine = AsyncHttpServerAdapter(model_path=MODEL, host=HOST, port=30000, launch_server=False)
is all that verl's own adapter (workers/rollout/sglang_rollout) needs. This file makes its requests, with a transformers model
as learner, and compares every log-probability."""
import base64
import io
import json
import re
import sys
import urllib.request
from multiprocessing.reduction import ForkingPickler

import invar.torch
import torch
import torch.multiprocessing
from transformers import AutoModelForCausalLM

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:30000"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 8
torch.multiprocessing.set_sharing_strategy("file_system")  # tensors of CPUs travel in named shared memory


def call(route, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{address}{route}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


def rollout(prompt_ids, seed):
    sampling = {"max_new_tokens": 8, "temperature": 1.0, "top_k": -1, "top_p": 1.0, "sampling_seed": seed}
    answer = call("/generate", {"input_ids": prompt_ids, "sampling_params": sampling, "return_logprob": True})
    pairs = answer["meta_info"]["output_token_logprobs"]
    return answer["text"], [token for _, token, _ in pairs], [value for value, _, _ in pairs]


def reward(text, wanted):
    """1 for the right number first, less the further it is away, 0 for none."""
    found = re.match(r"\s*(\d{1,6})", text)
    return 1 / (1 + abs(int(found[1]) - wanted)) if found else 0.0


def update(model, bucket=20):
    """release, resume, tensors in buckets, flush: sglang_rollout.py's ServerAdapter"""
    call("/release_memory_occupation", {"tags": ["kv_cache", "weights"]})
    call("/resume_memory_occupation", {"tags": ["weights"]})
    named = [(name, p.detach().to(dtype)) for name, p in model.named_parameters()]
    for i in range(0, len(named), bucket):
        out = io.BytesIO()
        ForkingPickler(out).dump(named[i : i + bucket])
        message = base64.b64encode(out.getvalue()).decode()
        call("/update_weights_from_tensor", {"serialized_named_tensors": [message], "load_format": None, "flush_cache": True})
    call("/resume_memory_occupation", {"tags": ["kv_cache"]})
    call("/flush_cache")


info = call("/server_info")
dtype = getattr(torch, info["dtype"])
model = invar.torch.patch(AutoModelForCausalLM.from_pretrained(info["model_path"], dtype=torch.float32), dtype)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
sums = [(a + b, call("/tokenize", {"prompt": f"{a} + {b} ="})["tokens"]) for a, b in ((2, 2), (13, 4), (30, 12), (25, 17))]
asked = [one for one in sums for _ in range(8)]
for step in range(steps):
    found = [rollout(prompt, 1000 * step + i) for i, (_, prompt) in enumerate(asked)]
    sequences = [[*prompt, *ids] for (_, prompt), (_, ids, _) in zip(asked, found)]
    logprobs = invar.torch.logprobs(model, sequences).split([len(s) for s in sequences])
    rows = [row[len(prompt) :] for row, (_, prompt) in zip(logprobs, asked)]  # of the answers
    equal = sum(torch.equal(row, torch.tensor(values)) for row, (_, _, values) in zip(rows, found))
    rewards = torch.tensor([reward(text, wanted) for (wanted, _), (text, _, _) in zip(asked, found)]).view(len(sums), -1)
    print(f"step {step}: mean reward {rewards.mean():.3f}, {equal} of {len(found)} answers equal in every bit", flush=True)
    assert equal == len(found)
    loss = -sum(a * row.sum() for a, row in zip((rewards - rewards.mean(1, keepdim=True)).flatten(), rows))
    optimizer.zero_grad()
    (loss / sum(len(row) for row in rows)).backward()
    optimizer.step()
    with torch.no_grad():  # the forward pass rounds matrices; norms arrive at the server in its type
        [p.copy_(p.to(dtype)) for p in model.parameters() if p.dim() == 1]
    update(model)
