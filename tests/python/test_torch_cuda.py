"""invar.torch on a GPU: pytest, with INVAR_SOURCE the root of the repository. Bits are compared with the CPU's, in tc16.

With INVAR_TORCH_EMULATED=1 the library's GPU is an emulated one, whose memory is this process's: tensors of the CPU then
are on it, and what concerns torch's streams, allocator and devices is skipped."""
import json
import os
import pathlib
import random
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

import invar.torch
from invar import LLM, InvarError, SamplingParams, Sequence, Status, Trainer
from invar.torch import _native as native
from invar.torch import _ops as ops

ROOT = pathlib.Path(os.environ["INVAR_SOURCE"])
EMULATED = os.environ.get("INVAR_TORCH_EMULATED") == "1"
GPU = torch.device("cpu" if EMULATED else "cuda:0")
pytestmark = pytest.mark.skipif(not EMULATED and not torch.cuda.is_available(), reason="wants a GPU")
real = pytest.mark.skipif(EMULATED or torch.cuda.device_count() < 1, reason="wants a real GPU")
FAMILIES = ("qwen3", "qwen2", "llama31", "mistral_v03", "qwen3_moe")


class EmulatedContext(native.Context):
    """Launches of the emulator's default stream run when it is waited for."""

    def call(self, name, *args):
        super().call(name, *args)
        super().call("iv_ops_synchronize")


@pytest.fixture
def on_gpu(monkeypatch):
    """on_gpu(call): its result with the ops of the GPU."""

    def run(call):
        if not EMULATED:
            return call(GPU)
        with monkeypatch.context() as m:
            native._context.cache_clear()
            m.setattr(native, "name_of", lambda device: "cuda:0")
            m.setattr(native, "Context", EmulatedContext)
            out = call(GPU)
        native._context.cache_clear()
        return out

    return run


def load(name, device, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(str(ROOT / "tests/data/hf" / name), dtype=dtype).to(device)


def random_ids(vocab, counts, seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    return [[rng.randrange(vocab) for _ in range(n)] for n in counts]


def same(found, wanted, what):
    assert len(found) == len(wanted)
    for i, (a, b) in enumerate(zip(found, wanted)):
        assert torch.equal(a.cpu(), b.cpu()), f"{what}: {i}"


def trained(name, dtype, device):
    """Log-probabilities of a step, all gradients, and the weights' hash after two steps of AdamW."""
    model = invar.torch.patch(load(name, device), dtype=dtype, arithmetic="tc16")
    sequences = random_ids(model.config.vocab_size, (17, 2, 70, 33, 5, 16), 6)
    optimizer, out = invar.torch.AdamW(model, lr=1e-2, weight_decay=0.1), []
    for _ in range(2):
        step = invar.torch.Step([len(s) for s in sequences])
        for part in step.passes(4, model):
            with part:
                mine = invar.torch.logprobs(model, [sequences[i] for i in part.indices], temperature=0.7)
                out.append(mine.detach().clone())
                (-mine.sum()).backward()
        optimizer.finish(step)
        out += [p.grad.clone() for p in model.parameters()]
        optimizer.step(step=step, denominator=137.0, max_norm=1.0)
        optimizer.zero_grad()
    return out, invar.torch.weights_hash(model)


@pytest.mark.parametrize("name,dtype", [(name, "float16" if name == "qwen2" else "bfloat16") for name in FAMILIES])
def test_a_patched_model_has_the_cpus_bits(on_gpu, name, dtype):
    wanted, wanted_hash = trained(name, dtype, "cpu")
    found, found_hash = on_gpu(lambda device: trained(name, dtype, device))
    same(found, wanted, name)
    assert found_hash == wanted_hash


def test_the_other_arithmetic_differs(on_gpu):
    """The control: the CPU's default is not what a GPU computes."""

    def logprobs(arithmetic):
        def run(device):
            model = invar.torch.patch(load("qwen3", device, torch.bfloat16), arithmetic=arithmetic)
            with torch.no_grad():
                return invar.torch.logprobs(model, random_ids(model.config.vocab_size, (90,), 4))

        return run

    assert not torch.equal(on_gpu(logprobs("auto")).cpu(), logprobs("auto")("cpu"))
    assert torch.equal(on_gpu(logprobs("auto")).cpu(), logprobs("tc16")("cpu"))


def test_logits_are_the_cpus(on_gpu):
    def logits(device):
        model = invar.torch.patch(load("qwen3", device, torch.bfloat16), arithmetic="tc16")
        [long, short] = random_ids(model.config.vocab_size, (60, 21), 5)
        padded, mask = torch.tensor([long, [0] * 39 + short]), torch.tensor([[1] * 60, [0] * 39 + [1] * 21])
        with torch.no_grad():
            return [model(padded.to(device), attention_mask=mask.to(device)).logits]

    same(on_gpu(logits), logits("cpu"), "logits")


def run_operators(device):
    """Outputs and gradients of every custom op."""
    generator = torch.Generator().manual_seed(3)

    def leaf(*shape, dtype=torch.float32):
        return torch.randn(shape, generator=generator).to(dtype).to(device).requires_grad_()

    def all_of(op, inputs, args):
        found = op(*args)
        outputs = [found] if isinstance(found, torch.Tensor) else list(found)
        first = outputs[0]
        weights = torch.randn(first.shape, generator=generator).to(first.dtype).to(device)
        return [o.detach() for o in outputs] + list(torch.autograd.grad(first, inputs, weights))

    sequences, name, b = torch.tensor([[5, 0], [3, 0], [7, 2]]), "bfloat16", torch.bfloat16
    x, weights, biases = leaf(15, 24, dtype=b), [leaf(8, 24), leaf(8, 24)], [leaf(8), leaf(8)]
    rows, norm, gate_up, qkv = leaf(15, 24), leaf(24), leaf(15, 48), leaf(15, 64)
    tables = [torch.rand(8, 4, generator=generator).to(device) for _ in range(2)]
    q, k, v = leaf(15, 32, dtype=b), leaf(15, 16, dtype=b), leaf(15, 16, dtype=b)
    experts = leaf(6, 24), leaf(6, 2 * 16, 24), leaf(6, 24, 16)
    table, logits = leaf(50, 24), leaf(15, 50)
    ids = torch.randint(0, 50, (15,), dtype=torch.int32, generator=generator).to(device)
    out = []
    for op, inputs, args in (
        (ops.linear, [x, *weights, *biases], (x, weights, biases, sequences, 8, 0, "column_parallel", "tc16")),
        (ops.rms_norm, [rows, norm], (rows, norm, sequences, 8, 1e-6, name)),
        (ops.swiglu, [gate_up], (gate_up, name)),
        (ops.rope, [qkv], (qkv, *tables, sequences, 4, 2, name)),
        (ops.attention, [q, k, v], (q, k, v, sequences, 4, 2, 0, "tc16")),
        (ops.embedding, [table], (table, ids, sequences, 8, name)),
        (ops.selected_logprobs, [logits], (logits, ids, 0.7)),
        (ops.experts, [rows, x, *experts], (rows, x, *experts, sequences, 8, 2, True, "tc16")),
    ):
        out += all_of(op, inputs, args)
    state = [torch.rand(3, 7, generator=generator).to(device) for _ in range(4)]
    ops.adamw_(*state, 0.5, 1e-3, 0.9, 0.99, 1e-8, 0.1, True, 2)
    return out + state


def test_operators_have_the_cpus_bits(on_gpu):
    same(on_gpu(run_operators), run_operators("cpu"), "operators")


def refused(text, call, status=Status.INVALID):
    with pytest.raises(InvarError, match=text) as caught:
        call()
    assert caught.value.status == status


def test_keys_that_are_not_finite(on_gpu):
    def run(device):
        context = native.context(torch.bfloat16, "tc16", device)
        attention = native.Attention(context, [20], 2, 1, 64)
        q, k, v = (torch.randn(20, n, device=device).bfloat16() for n in (128, 64, 64))
        k[7, 3] = torch.inf

        def twice():
            attention.forward(q, k, v)
            context.finish()

        refused("row 7", twice, Status.NOT_FINITE)
        k[7, 3] = 0
        twice()

    on_gpu(run)


# ---- torch's devices


@real
def test_devices_that_differ_are_named():
    sequences, x = torch.tensor([[4, 0]]), torch.randn(4, 16).bfloat16()
    args = (sequences, 8, 0, "column_parallel", "tc16")
    refused("on cuda:0, found .* on cpu", lambda: ops.linear(x.to(GPU), [torch.randn(8, 16)], [], *args))
    refused("on the CPU, found .* on cuda:0", lambda: native.Linear(native.context(torch.bfloat16), [torch.randn(8, 16, device=GPU)]))
    model = load("qwen3", GPU, torch.bfloat16)
    model.model.norm.to("cpu")
    refused("model.norm.weight: wanted it on cuda:0", lambda: invar.torch.patch(model))
    model = invar.torch.patch(load("qwen3", "cpu", torch.bfloat16)).to(GPU)
    with torch.no_grad():
        refused("on the CPU, found .* on cuda:0", lambda: invar.torch.logprobs(model, [[1, 2, 3]]))
    if torch.cuda.device_count() > 1:
        refused("on cuda:0, found .* on cuda:1", lambda: ops.linear(x.to(GPU), [torch.randn(8, 16, device="cuda:1")], [], *args))


@real
def test_streams_and_memory_are_torchs():
    """Work of a side stream comes before what waits for it, and scratch goes back to torch's allocator."""
    sequences, x, w = torch.tensor([[64, 0]]), torch.randn(64, 40, device=GPU).bfloat16(), torch.randn(24, 40, device=GPU)
    args = (sequences, 8, 0, "column_parallel", "tc16")
    wanted = ops.linear(x, [w], [], *args).cpu()
    torch.cuda.synchronize()
    before, side, device = torch.cuda.memory_allocated(GPU), torch.cuda.Stream(GPU), torch.cuda.current_device()
    for _ in range(20):
        with torch.cuda.stream(side):
            y = torch.zeros_like(x)
            for _ in range(50):
                y = y + x / 50
            y = y.copy_(x)
            found = ops.linear(y, [w], [], *args)
        torch.cuda.current_stream(GPU).wait_stream(side)
        assert torch.equal(found.cpu(), wanted)
    del y, found
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated(GPU) == before and torch.cuda.current_device() == device


@real
def test_sampled_answers_have_the_engines_bits():
    """64 answers of tiny-math by the engine on GPUs and by ranks of a CPU."""
    math = str(ROOT / "models/tiny-math")
    params = [SamplingParams(seed=i, max_tokens=24, temperature=0.9) for i in range(64)]
    chats = [[{"role": "user", "content": f"What is {3 * i} + {7 * i + 1}?"}] for i in range(64)]
    model = AutoModelForCausalLM.from_pretrained(math, dtype=torch.bfloat16).to(GPU)
    model = invar.torch.patch(model, arithmetic="tc16")
    digests = []
    ranks = [("cuda", n) for n in (1, 2, 4) if n <= torch.cuda.device_count()] + [("cpu", n) for n in (1, 2, 4)]
    for where, n in ranks:
        with LLM(math, device=where, arithmetic="tc16", tensor_parallel_size=n) as llm:
            outputs = llm.chat(chats, params, use_tqdm=False)
        answers = [(o.prompt_token_ids, o.outputs[0]) for o in outputs]
        sequences = [[*prompt, *answer.token_ids] for prompt, answer in answers]
        with torch.no_grad():
            found = invar.torch.logprobs(model, sequences).cpu().split([len(s) for s in sequences])
        for f, (_, answer) in zip(found, answers):
            assert torch.equal(f[-len(answer.token_ids) :], torch.tensor(answer.token_logprobs, dtype=torch.float32)), (where, n)
        digests.append([answer.digest for _, answer in answers])
    assert all(d == digests[0] for d in digests)


@real
def test_gpus_and_passes_train_the_trainers_weights(tmp_path):
    """DDP and FSDP2 on up to four GPUs, over NCCL; the trainer runs on a CPU."""
    from torch_train import data

    path, gpus = str(ROOT / "tests/data/hf/qwen3"), 1 << (min(torch.cuda.device_count(), 4).bit_length() - 1)
    words = [sys.executable, ROOT / "tests/python/torch_train.py", path, "bfloat16", "20", "8", tmp_path, str(gpus)]
    printed = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = json.loads(printed.splitlines()[-1])
    assert len(found) == {1: 4, 2: 6, 4: 8}[gpus]
    for ranks in (8, 4):
        with Trainer(path, dtype="bfloat16", weight_decay=0.1, arithmetic="tc16", device="cpu", virtual_ranks=ranks) as trainer:
            wanted = []
            for sequences, masks in data(512, 20 if ranks == 8 else 1):
                batch = [Sequence(s, [float(m) for m in mask]) for s, mask in zip(sequences, masks)]
                wanted.append(trainer.step(batch, 1e-3, 1.0).weights_hash)
        for layout, hashes in found.items():
            assert (hashes == wanted) if ranks == 8 else (hashes[0] != wanted[0]), layout  # 4: the control
