"""invar.torch: pytest, with INVAR_SOURCE the root of the repository. Bits are compared with the engine and the trainer."""
import copy
import inspect
import json
import os
import pathlib
import pickle
import random
import subprocess
import sys

import numpy
import pytest
import torch
from transformers import AutoModelForCausalLM

import invar.torch
from invar.torch._optimizer import parts_of
from invar import LLM, InvarError, SamplingParams, Sequence, Status, Trainer

ROOT = pathlib.Path(os.environ["INVAR_SOURCE"])
HERE = pathlib.Path(__file__).resolve().parent
MATH = str(ROOT / "models/tiny-math")
FAMILIES = ("qwen3", "qwen2", "llama31", "mistral_v03", "qwen3_moe")
sys.path.insert(0, str(HERE))


def hf(name):
    return str(ROOT / "tests/data/hf" / name)


def load(path, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype)


def random_ids(vocab, counts, seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    return [[rng.randrange(vocab) for _ in range(n)] for n in counts]


@pytest.fixture(scope="module")
def sampled():
    """64 answers of tiny-math, and the log-probabilities of their tokens."""
    params = [SamplingParams(seed=i, max_tokens=24, temperature=0.9) for i in range(64)]
    chats = [[{"role": "user", "content": f"What is {3 * i} + {7 * i + 1}?"}] for i in range(64)]
    with LLM(MATH) as llm:
        outputs = llm.chat(chats, params, use_tqdm=False)
    answers = [(output.prompt_token_ids, output.outputs[0]) for output in outputs]
    assert sum(len(answer.token_ids) for _, answer in answers) > 1000
    return chats, params, answers


@pytest.fixture(scope="module")
def patched():
    return invar.torch.patch(load(MATH, torch.bfloat16))


def differing(model, answers, temperature=1.0):
    """Sampled tokens whose log-probabilities are not the engine's."""
    sequences = [[*prompt, *answer.token_ids] for prompt, answer in answers]
    with torch.no_grad():
        found = invar.torch.logprobs(model, sequences, temperature=temperature).split([len(s) for s in sequences])
    wanted = [torch.tensor(answer.token_logprobs, dtype=torch.float32) for _, answer in answers]
    return sum(int((f[-len(w) :].view(torch.int32) != w.view(torch.int32)).sum()) for f, w in zip(found, wanted))


def test_sampled_answers_have_the_engines_bits(sampled, patched):
    chats, params, answers = sampled
    assert differing(patched, answers) == 0
    for ranks in (2, 4):  # the other engines sample the same
        with LLM(MATH, tensor_parallel_size=ranks) as llm:
            outputs = llm.chat(chats, params, use_tqdm=False)
        assert [o.outputs[0].digest for o in outputs] == [a.digest for _, a in answers]
        assert differing(patched, [(o.prompt_token_ids, o.outputs[0]) for o in outputs]) == 0


def test_an_unpatched_model_differs(sampled):
    _, _, answers = sampled
    model, wrong = load(MATH, torch.bfloat16), 0
    for prompt, answer in answers[:8]:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *answer.token_ids]])).logits[0].float()
        found = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1].gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
        wrong += int((found != torch.tensor(answer.token_logprobs)).sum())
    assert wrong > 0
    assert differing(invar.torch.patch(load(MATH, torch.bfloat16), arithmetic="tc16"), answers[:2]) > 0  # of another law


@pytest.mark.parametrize("name", ["deepcopy", "pickle", "torch.save"])
def test_copies_of_a_patched_model(sampled, tmp_path, name):
    """A copy has the engine's bits and weights of its own: what the first one learns is not in it."""
    model = invar.torch.patch(load(MATH), "bfloat16")
    assert differing(model, sampled[2][:2]) == 0  # tables exist
    if name == "deepcopy":
        other = copy.deepcopy(model)
    elif name == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        torch.save(model, tmp_path / "model")
        other = torch.load(tmp_path / "model", weights_only=False)
    with torch.no_grad():
        model.model.norm.weight.mul_(1.5)
    assert differing(other, sampled[2][:4]) == 0 and differing(model, sampled[2][:4]) > 0
    with pytest.raises(InvarError, match="patched already"):
        invar.torch.patch(other)
    assert "attention_mask" in inspect.signature(other.forward).parameters
    optimizer, ids = invar.torch.AdamW(other, lr=1e-3), [5, 6, 7]
    step = invar.torch.Step([3])
    for part in step.passes():
        with part:
            (-invar.torch.logprobs(other, [ids]).sum()).backward()
    optimizer.step(step=step, denominator=2)
    with Trainer(MATH, dtype="bfloat16", pass_tokens=512) as trainer:
        assert invar.torch.weights_hash(other) == trainer.step([Sequence(ids)], 1e-3).weights_hash


def test_copies_of_the_rest():
    """What cannot be copied says so; a Policy and a Receipt can."""
    with LLM(MATH) as llm, Trainer(MATH, pass_tokens=512) as trainer:
        for one in (llm, trainer, invar.Tokenizer(MATH), llm.get_tokenizer()):
            for call in (copy.deepcopy, pickle.dumps):
                with pytest.raises(InvarError, match="cannot be copied"):
                    call(one)
        [output] = llm.generate("2", SamplingParams(max_tokens=2, receipt=True), use_tqdm=False)
        receipt = pickle.loads(pickle.dumps(invar.Receipt(output.outputs[0].receipt)))
        assert llm.replay(receipt) and copy.deepcopy(output) == output
    policy = copy.deepcopy(invar.Policy("dapo", eps_high=0.3))
    assert pickle.loads(pickle.dumps(policy))._fields == policy._fields


def test_arguments_of_a_patched_model(patched):
    ids = [3, 4, 5]
    with torch.no_grad():
        wanted = invar.torch.logprobs(patched, [ids])
        for same in (torch.tensor(ids), numpy.array(ids), tuple(ids), torch.tensor(ids, dtype=torch.int32)):
            assert torch.equal(invar.torch.logprobs(patched, [same], temperature=numpy.float32(1)), wanted)
        for value, words in (([1.5, 2], "ids"), (torch.tensor([1.0, 2]), "ids"), (b"12", "ids"), ([True, False], "ids"), ({1: 2}, "ids"),
                             ("12", "ids"), ([2**40], "ids"), ([], "ids"), ([[1]], "ids"), ([1023, 1024], "ids: wanted 0 to")):
            with pytest.raises(InvarError, match=words):
                invar.torch.logprobs(patched, [value])
        for masks, words in (([[0, 1]], "mask"), ([[0, float("nan"), 1]], "mask"), ("ab", "masks"), ([], "masks"), ([["a"] * 3], "mask")):
            with pytest.raises(InvarError, match=words):
                invar.torch.logprobs(patched, [ids], masks)
        for temperature in (0, -1, float("nan"), "1", None, True):
            with pytest.raises(InvarError, match="temperature"):
                invar.torch.logprobs(patched, [ids], temperature=temperature)
        with pytest.raises(InvarError, match="wanted integers"):
            patched(torch.tensor([[1.0, 2.0]]))
        with pytest.raises(InvarError, match="wanted a patched model"):
            invar.torch.logprobs(torch.nn.Linear(2, 2), [ids])
    for lengths in ([1.5], ["3"], [0], 5, None, [True]):
        with pytest.raises(InvarError, match="lengths"):
            invar.torch.Step(lengths)
    for size in (0, -1, 1.5, "2"):
        with pytest.raises(InvarError, match="size"):
            list(invar.torch.Step([3]).passes(size))
    model = invar.torch.patch(load(MATH), "bfloat16")
    for name, value in (("lr", float("nan")), ("lr", -1), ("lr", "1"), ("betas", 0.9), ("betas", (0.9, 2)), ("eps", None),
                        ("weight_decay", True), ("decay_all", "no")):  # fmt: skip
        with pytest.raises(InvarError, match=name):
            invar.torch.AdamW(model, **{name: value})
    optimizer = invar.torch.AdamW(model)
    for name, value in (("step", None), ("denominator", float("nan")), ("denominator", "2"), ("max_norm", -1)):
        with pytest.raises(InvarError, match=name):
            optimizer.step(**{"step": invar.torch.Step([3]), "denominator": 2, name: value})


def test_tensors_as_arguments():
    """Of torch, wherever numpy's or Python's are taken."""
    params = SamplingParams(seed=torch.tensor(5), temperature=torch.tensor(1.0), max_tokens=torch.tensor(4), stop_token_ids=torch.tensor([9]))
    plain = SamplingParams(seed=5, temperature=1.0, max_tokens=4, stop_token_ids=[9])
    assert params == plain
    ids, mask = torch.tensor([3, 4, 5]), torch.tensor([0, 1, 1], dtype=torch.bfloat16, requires_grad=False)
    with LLM(MATH) as llm, Trainer(MATH, pass_tokens=512) as trainer:
        [a], [b], [c] = (llm.generate(p, plain, use_tqdm=False) for p in ([3, 4, 5], ids, ids[None]))
        assert a.outputs[0].digest == b.outputs[0].digest == c.outputs[0].digest
        assert llm.decode(ids) == llm.decode([3, 4, 5])
        weights = mask.float().requires_grad_()
        for given in (mask, weights, ids > 3):
            assert (trainer.score([Sequence(ids, given)])[0] == trainer.score([Sequence([3, 4, 5])])[0]).all()
        for wrong in (torch.tensor([1.0]), torch.tensor([True]), torch.tensor(2), torch.zeros(1, 1, 1, dtype=torch.int64)):
            for call in (llm.generate, llm.score):
                with pytest.raises(InvarError, match="prompts|token ids"):
                    call(wrong, use_tqdm=False)
    for name, value in (("seed", torch.tensor(1.5)), ("seed", torch.tensor([1, 2])), ("temperature", torch.tensor(True)),
                        ("stop_token_ids", torch.tensor([1.0]))):  # fmt: skip
        with pytest.raises(InvarError, match=name):
            SamplingParams(**{name: value})


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_families(name):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model = invar.torch.patch(load(hf(name), dtype))
        [long, short] = random_ids(model.config.vocab_size, (60, 21), 5)
        with LLM(hf(name), dtype=str(dtype).removeprefix("torch.")) as llm, torch.no_grad():
            wanted = [torch.from_numpy(llm.logits(ids)) for ids in (long, short)]
            # padded on the left, as transformers' generate does; padded on the right; packed, by positions
            padded = torch.tensor([long, [0] * 39 + short])
            mask = torch.tensor([[1] * 60, [0] * 39 + [1] * 21])
            left = model(padded, attention_mask=mask).logits
            assert torch.equal(left[0], wanted[0]) and torch.equal(left[1, 39:], wanted[1])
            right = model(padded[1:].roll(21, 1), attention_mask=mask[1:].roll(21, 1)).logits
            assert torch.equal(right[0, :21], wanted[1])
            positions = torch.cat([torch.arange(60), torch.arange(21)])[None]
            packed = model(torch.tensor([long + short]), position_ids=positions).logits
            assert torch.equal(packed[0], torch.cat(wanted))


@pytest.mark.parametrize("name,dtype,arithmetic", [
    ("qwen3", "bfloat16", "fma32"), ("qwen2", "float16", "fma32"), ("llama31", "float32", "auto"), ("mistral_v03", "bfloat16", "tc16"),
    ("qwen3_moe", "bfloat16", "fma32"),
])  # fmt: skip
def test_gradients_are_those_of_the_trainer(name, dtype, arithmetic):
    model = invar.torch.patch(load(hf(name)), dtype=dtype, arithmetic=arithmetic)
    sequences = random_ids(model.config.vocab_size, (17, 2, 70, 33, 5), 6)
    rng = random.Random(7)
    masks = [[0.0, *(rng.choice([0.0, 1.0]) for _ in s[1:])] for s in sequences]
    coefficients = [[rng.gauss(0, 1) * m for m in mask] for mask in masks]
    optimizer = invar.torch.AdamW(model)
    with Trainer(hf(name), dtype=dtype, arithmetic=arithmetic) as trainer:
        batch = [Sequence(s, m, coefficients=c) for s, m, c in zip(sequences, masks, coefficients)]
        wanted = torch.cat([torch.from_numpy(x) for x in trainer.gradients(batch, 1.0, temperature=0.7)])
        step = invar.torch.Step([len(s) for s in sequences])
        [part] = step.passes()
        with part:
            mine = invar.torch.logprobs(model, [sequences[i] for i in part.indices], [masks[i] for i in part.indices], 0.7)
            weights = torch.tensor([c for i in part.indices for c in coefficients[i]], dtype=torch.float32)
            (-(weights * mine).sum()).backward()
        found = dict(zip(part.indices, mine.detach().split(part.lengths)))
        assert torch.equal(torch.cat([found[i] for i in range(len(sequences))]), wanted)
        optimizer.finish(step)
        for part in parts_of(model):
            grad = part.parameter.grad[part.index]
            assert torch.equal(grad, torch.from_numpy(trainer.gradient(part.name, tuple(grad.shape)))), part.name


def test_a_call_alone_is_a_step():
    """Without a Step a call is one: its gradients are complete, in the same order of sums."""
    grads = []
    sequences = random_ids(512, (9, 30, 4), 8)
    for explicit in (False, True):
        model = invar.torch.patch(load(hf("qwen2")))
        order = [0, 1, 2]
        step = invar.torch.Step([len(s) for s in sequences])
        [part] = step.passes()
        if explicit:
            order = part.indices
            part.__enter__()
        invar.torch.logprobs(model, [sequences[i] for i in order]).sum().backward()
        part.__exit__(None, None, None)
        grads.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys() and all(torch.equal(grads[0][n], grads[1][n]) for n in grads[0])


def test_slices_of_the_heads_logits_do_not_change_bits(monkeypatch):
    from invar.torch import _blocks

    found = []
    for floats in (1 << 24, 16 * 512):  # one slice, slices of 16 rows
        monkeypatch.setitem(_blocks.LOGITS_FLOATS, "cpu", floats)
        model = invar.torch.patch(load(hf("qwen3")), dtype="bfloat16")
        mine = invar.torch.logprobs(model, random_ids(512, (40, 9, 30), 11))
        mine.sum().backward()
        found.append([mine.detach(), *(p.grad for p in model.parameters())])
    assert len(_blocks.slices(76, 512, torch.device("cpu"))) == 5
    assert all(torch.equal(a, b) for a, b in zip(*found))


def test_checkpointed_layers_have_the_same_gradients():
    grads = []
    for checkpointed in (False, True):
        model = invar.torch.patch(load(hf("qwen3")), dtype="bfloat16")
        if checkpointed:
            model.gradient_checkpointing_enable()
            model.train()
        invar.torch.logprobs(model, random_ids(512, (9, 30), 9)).sum().backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads))


def trainer_hashes(path, dtype, steps, **options):
    from torch_train import data

    with Trainer(path, dtype=dtype, weight_decay=0.1, **options) as trainer:
        hashes = []
        for sequences, masks in data(512, steps):
            batch = [Sequence(s, [float(m) for m in mask]) for s, mask in zip(sequences, masks)]
            hashes.append(trainer.step(batch, 1e-3, 1.0).weights_hash)
        return hashes


LONG = os.environ.get("INVAR_TEST_LONG")


# INVAR_TEST_LONG=1: 20 and 3 steps instead of 6 and 2, of which two and one have fewer sequences than virtual ranks.
@pytest.mark.parametrize("name,steps,layouts", [("qwen3", 20 if LONG else 6, 7), ("qwen3_moe", 3 if LONG else 2, 1)])
def test_processes_and_passes_train_the_trainers_weights(tmp_path, name, steps, layouts):
    path = hf(name)
    words = [sys.executable, HERE / "torch_train.py", path, "bfloat16", str(steps), str(layouts), tmp_path]
    worker = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    wanted = trainer_hashes(path, "bfloat16", steps)
    other = trainer_hashes(path, "bfloat16", 1, virtual_ranks=4)
    found = json.loads(worker.communicate()[0].splitlines()[-1])
    assert worker.returncode == 0 and len(found) == layouts
    for layout, hashes in found.items():
        assert hashes == wanted, layout
    assert other[0] != wanted[0]  # other virtual ranks are another sum


def test_operators():
    from torch.library import opcheck

    from invar.torch import _ops as ops

    torch.manual_seed(3)
    sequences, tests = torch.tensor([[5, 0], [3, 0], [7, 2]]), ("test_schema", "test_autograd_registration", "test_faketensor")

    def leaf(*shape, dtype=torch.float32):
        return torch.randn(shape).to(dtype).requires_grad_()

    def near(op, plain, inputs):
        """Against torch's own arithmetic, and its gradients."""
        found, wanted = op(), plain()
        grad = torch.randn_like(wanted)
        pairs = zip([found, *torch.autograd.grad(found, inputs, grad)], [wanted, *torch.autograd.grad(wanted, inputs, grad)])
        for a, b in pairs:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)

    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        x, weights, biases = leaf(15, 24, dtype=dtype), [leaf(8, 24), leaf(8, 24)], [leaf(8), leaf(8)]
        rows, norm, gate_up = leaf(15, 24), leaf(24), leaf(15, 48)
        tables, qkv = (torch.rand(8, 4), torch.rand(8, 4)), leaf(15, 64)
        q, k, v = (t.detach().requires_grad_() for t in ops.rope(qkv, *tables, sequences, 4, 2, name))
        experts = leaf(6, 24), leaf(6, 2 * 10, 24), leaf(6, 24, 10)
        table, ids, logits = leaf(50, 24), torch.randint(0, 50, (15,), dtype=torch.int32), leaf(15, 50)
        for op, args in (
            (ops.linear, (x, weights, biases, sequences, 8, 0, "column_parallel", "auto")),
            (ops.rms_norm, (rows, norm, sequences, 8, 1e-6, name)),
            (ops.swiglu, (gate_up, name)),
            (ops.rope, (qkv, *tables, sequences, 4, 2, name)),
            (ops.attention, (q, k, v, sequences, 4, 2, 0, "auto")),
            (ops.embedding, (table, ids, sequences, 8, name)),
            (ops.selected_logprobs, (logits, ids, 0.7)),
            (ops.experts, (rows, x, *experts, sequences, 8, 2, True, "auto")),
            (ops.adamw_, (*(torch.rand(3, 7) for _ in range(4)), 0.5, 1e-3, 0.9, 0.99, 1e-8, 0.1, True, 2)),
        ):
            opcheck(op, args, test_utils=tests)
        if dtype != torch.float32:
            continue
        f = torch.nn.functional
        near(lambda: ops.linear(x, weights, biases, sequences, 8, 0, "column_parallel", "auto"),
             lambda: torch.cat([f.linear(x, w, b) for w, b in zip(weights, biases)], 1), [x, *weights, *biases])  # fmt: skip
        near(lambda: ops.rms_norm(rows, norm, sequences, 8, 1e-6, name), lambda: f.rms_norm(rows, [24], norm, 1e-6), [rows, norm])
        near(lambda: ops.swiglu(gate_up, name)[0], lambda: f.silu(gate_up[:, :24]) * gate_up[:, 24:], [gate_up])
        near(lambda: ops.embedding(table, ids, sequences, 8, name), lambda: table[ids.long()], [table])
        near(lambda: ops.selected_logprobs(logits, ids, 0.7)[0],
             lambda: torch.log_softmax(logits / 0.7, -1).gather(1, ids.long()[:, None])[:, 0], [logits])  # fmt: skip

        def plain_experts():
            router, up, down = experts
            weights, chosen = torch.softmax(f.linear(x, router), -1).topk(2, -1)
            pairs = torch.stack([f.linear(x, w) for w in up], 1)  # [tokens, experts, 2 * 10]
            each = torch.einsum("tei,ehi->teh", f.silu(pairs[..., :10]) * pairs[..., 10:], down)
            picked = each.gather(1, chosen[:, :, None].expand(-1, -1, 24))
            return rows + (picked * (weights / weights.sum(-1, keepdim=True))[..., None]).sum(1)

        near(lambda: ops.experts(rows, x, *experts, sequences, 8, 2, True, "auto")[0], plain_experts, [rows, x, *experts])

        def plain_attention():
            parts = []
            for part in zip(*(t.split([5, 3, 7]) for t in (q, k, v))):
                a, b, c = (t.view(len(t), -1, 8).transpose(0, 1) for t in part)
                b, c = b.repeat_interleave(2, 0), c.repeat_interleave(2, 0)
                parts.append(f.scaled_dot_product_attention(a, b, c, is_causal=True).transpose(0, 1).reshape(-1, 32))
            return torch.cat(parts)

        near(lambda: ops.attention(q, k, v, sequences, 4, 2, 0, "auto")[0], plain_attention, [q, k, v])


def refused(text, call, status=Status.UNSUPPORTED):
    with pytest.raises(InvarError, match=text) as caught:
        call()
    assert caught.value.status == status


def test_what_is_not_the_law_is_refused(patched):
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        with torch.autocast("cpu"):
            refused("autocast", lambda: patched(ids))
        refused("use_cache", lambda: patched(ids, use_cache=True))
        refused("inputs_embeds", lambda: patched(inputs_embeds=torch.zeros(1, 3, 8)))
        refused("one run of ones", lambda: patched(ids, attention_mask=torch.tensor([[1, 0, 1]])), Status.INVALID)
        refused("position_ids", lambda: patched(ids, position_ids=torch.tensor([[0, 2, 1]])), Status.INVALID)
        refused("labels", lambda: patched(ids, labels=ids))
        refused("0 to 1023", lambda: patched(torch.tensor([[5, 2000]])), Status.INVALID)
        refused("at most", lambda: patched(torch.zeros(1, 1 << 20, dtype=torch.int64)))
        with pytest.raises(Exception, match="torch.compile"):
            torch.compile(patched, backend="eager", fullgraph=False)(ids)
    refused("wanted float32", lambda: invar.torch.logprobs(patched, [[5, 6, 7]]).sum().backward())
    refused("float32", lambda: invar.torch.AdamW(patched))
    refused("patched already", lambda: invar.torch.patch(patched), Status.INVALID)
    refused("wanted one of", lambda: invar.torch.patch(torch.nn.Linear(2, 2)))
    for change, text in (
        (lambda m: setattr(m.config, "hidden_act", "gelu"), "hidden_act"),
        (lambda m: setattr(m.config, "attention_dropout", 0.1), "attention_dropout"),
        (lambda m: setattr(m.config, "_attn_implementation", "flex_attention"), "attention"),
        (lambda m: setattr(m.model.layers[1].mlp, "up_proj", torch.nn.Identity()), "layers.1.up_proj"),
        (lambda m: setattr(m.model.layers[0].self_attn, "q_proj", torch.nn.Linear(64, 64)), "layers.0.q_proj"),
        (lambda m: m.model.layers[0].half(), "wanted float32 or"),
    ):
        model = load(hf("qwen3"))
        change(model)
        with pytest.raises(InvarError, match=text):
            invar.torch.patch(model)
    model = invar.torch.patch(load(hf("qwen3")))
    step = invar.torch.Step([3, 4])
    with next(step.passes()):
        refused("sequences of", lambda: invar.torch.logprobs(model, [[1, 2, 3]]), Status.INVALID)
    refused("divisor", step_of_three_processes)
    model.model.layers[1].input_layernorm.to(torch.bfloat16)  # as mixed precision would
    refused("layers.1.input_layernorm.weight: wanted torch.float32", lambda: invar.torch.logprobs(model, [[1, 2, 3]]))


def step_of_three_processes():
    import unittest.mock as mock

    with mock.patch("torch.distributed.is_initialized", return_value=True), mock.patch(
        "torch.distributed.get_world_size", return_value=3
    ), mock.patch("torch.distributed.get_rank", return_value=0):
        invar.torch.Step([3])
