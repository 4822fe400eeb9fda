"""verl's weight updates into a running `invar serve`: verl_http.py [HOST:PORT] [STEPS]; needs torch and transformers

    invar serve MODEL --port 30000
    engine = AsyncHttpServerAdapter(model_path=MODEL, host=HOST, port=30000, launch_server=False)
is all that verl's own adapter (workers/rollout/sglang_rollout) needs. This file makes its requests, with a transformers model
as learner, and compares every log-probability."""
import base64
import io
import json
import sys
import urllib.request
from multiprocessing.reduction import ForkingPickler

import invar.torch
import torch
import torch.multiprocessing
from transformers import AutoModelForCausalLM

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:30000"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 3
torch.multiprocessing.set_sharing_strategy("file_system")  # tensors of CPUs travel in named shared memory


def call(route, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{address}{route}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


def rollout(prompt_ids, seed):
    sampling = {"max_new_tokens": 16, "temperature": 1.0, "top_k": -1, "top_p": 1.0, "sampling_seed": seed}
    meta = call("/generate", {"input_ids": prompt_ids, "sampling_params": sampling, "return_logprob": True})["meta_info"]
    return [token for _, token, _ in meta["output_token_logprobs"]], [v for v, _, _ in meta["output_token_logprobs"]]


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
prompts = [call("/tokenize", {"prompt": text})["tokens"] for text in ("2 + 2 =", "3 + 4 =")]
for step in range(steps):
    answers = [(p, *rollout(p, 1000 * step + i)) for p in prompts for i in range(4)]
    sequences = [[*prompt, *ids] for prompt, ids, _ in answers]
    logprobs = invar.torch.logprobs(model, sequences).split([len(s) for s in sequences])
    equal = sum(torch.equal(row[len(prompt) :], torch.tensor(values)) for row, (prompt, _, values) in zip(logprobs, answers))
    print(f"step {step}: {equal} of {len(answers)} answers equal in every bit")
    assert equal == len(answers)
    rewards = torch.tensor([-float(len(ids)) for _, ids, _ in answers]).view(len(prompts), -1)
    advantages = (rewards - rewards.mean(1, keepdim=True)).flatten()
    loss = -sum(a * row[len(prompt) :].sum() for a, row, (prompt, _, _) in zip(advantages, logprobs, answers))
    optimizer.zero_grad()
    (loss / sum(len(ids) for _, ids, _ in answers)).backward()
    optimizer.step()
    with torch.no_grad():  # the forward pass rounds matrices; norms arrive at the server in its type
        [p.copy_(p.to(dtype)) for p in model.parameters() if p.dim() == 1]
    update(model)
