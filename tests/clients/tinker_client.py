"""The tinker client, unmodified, against `python -m invar.tinker`: every call that trains, samples, saves and lists; log-probabilities
and weights in bits; errors; keys; a restart."""

import asyncio
import os
import pickle
import re
import subprocess
import sys
import tempfile

import tinker_server as server

server.add_torch()
import numpy as np  # noqa: E402
import tinker  # noqa: E402
import torch  # noqa: E402
from tinker import types  # noqa: E402
from upstream import TINY_MATH  # noqa: E402

RANKS = [int(word) for word in sys.argv[1:]] or [8, 0]  # 0: all weights learn
RANK = RANKS[0]
PROMPTS = ["What is 17 * 6?", "What is 3 + 4?", "What is 100 - 1?"]
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


class World:
    def __init__(self, url):
        self.url = url
        self.service = tinker.ServiceClient(base_url=url, api_key=server.KEY, user_metadata={"test": "calls"})
        self.rest = tinker.RestClient(base_url=url, api_key=server.KEY)
        self.trainer = self.new(seed=7)
        self.tokenizer = self.trainer.get_tokenizer()

    def new(self, **more):
        return self.service.create_lora_training_client(server.NAME, rank=RANK, **more).result()

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)


def datum(ids, **inputs):
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs={"target_tokens": ids[1:], **inputs})


def fails(call, kind, *texts):
    try:
        call()
    except kind as error:
        for text in texts:
            assert text in str(error), (text, str(error))
        return error
    raise AssertionError(f"wanted {kind.__name__} with {texts}, found none")


def logprobs_of(result):
    return [np.asarray(output["logprobs"].data, np.float32) for output in result.loss_fn_outputs]


def sampled(world, client, count=4, **more):
    params = types.SamplingParams(**{"max_tokens": 24, "temperature": 1.0, "seed": 5, "stop": [], **more})
    prompts = [types.ModelInput.from_ints(world.ids(text)) for text in PROMPTS]
    return [(p.to_ints(), f.result()) for p, f in [(p, client.sample(p, count, params)) for p in prompts]]


def rl_data(groups, **more):
    """Datums as the cookbook makes them: prompts have target 0, log-probability 0 and advantage 0."""
    out, q = [], []
    for prompt, response in groups:
        for i, s in enumerate(response.sequences):
            pad = [0.0] * (len(prompt) - 1)
            out.append(types.Datum(
                model_input=types.ModelInput.from_ints([*prompt, *s.tokens[:-1]]),
                loss_fn_inputs={"target_tokens": [0] * len(pad) + list(s.tokens), "logprobs": pad + list(s.logprobs),
                                "advantages": pad + [float(i % 3 - 1)] * len(s.tokens), **{k: pad + [v] * len(s.tokens) for k, v in more.items()}}))
            q.append(np.asarray(s.logprobs, np.float32))
    return out, q


@check
def facts(w):
    model, = w.rest.get_server_capabilities().result().supported_models
    assert model.model_name == server.NAME and model.max_context_length == 2048 and model.trainable and model.sampleable
    info = w.trainer.get_info()
    assert info.model_data.model_name == server.NAME and info.is_lora == (RANK > 0) and info.lora_rank == (RANK or None)
    run = w.rest.get_training_run(w.trainer.model_id).result()
    assert run.base_model == server.NAME and not run.corrupted


@check
def supervised(w):
    """The loss falls, and forward agrees with forward_backward in every bit."""
    data = [datum(w.ids(text + " 1 2 3"), weights=[0.0, *[1.0] * (len(w.ids(text + " 1 2 3")) - 2)]) for text in PROMPTS]
    losses = []
    for _ in range(4):
        before = w.trainer.forward(data, "cross_entropy").result()
        step = w.trainer.forward_backward(data, "cross_entropy")
        update = w.trainer.optim_step(types.AdamParams(learning_rate=3e-3, beta2=0.99, weight_decay=0.01, grad_clip_norm=1.0))
        result = step.result()
        assert update.result().metrics["grad_norm"] > 0
        for a, b in zip(logprobs_of(before), logprobs_of(result)):
            assert a.tobytes() == b.tobytes()
        want = -sum(float(np.dot(np.asarray(d.loss_fn_inputs["weights"].data, np.float64), row.astype(np.float64))) for d, row in zip(data, logprobs_of(result)))
        assert abs(result.metrics["loss:sum"] - want) <= 1e-9 * abs(want)
        losses.append(result.metrics["loss:sum"])
    assert losses[-1] < losses[0], losses


@check
def sampler_and_learner(w):
    """KL exactly 0: the learner's log-probability of every sampled token has the sampler's bits, after every step."""
    for _ in range(3):
        client = w.trainer.save_weights_and_get_sampling_client().result()
        data, q = rl_data(sampled(w, client))
        result = w.trainer.forward_backward(data, "importance_sampling").result()
        for row, behavior in zip(logprobs_of(result), q):
            assert row[-len(behavior):].tobytes() == behavior.tobytes()
        w.trainer.optim_step(types.AdamParams(learning_rate=1e-3)).result()


@check
def losses(w):
    """Losses as torch has them, from the log-probabilities of the answer; off policy after a step."""
    client = w.trainer.save_weights_and_get_sampling_client().result()
    groups = sampled(w, client)
    w.trainer.forward_backward(rl_data(groups)[0], "importance_sampling").result()
    w.trainer.optim_step(types.AdamParams(learning_rate=2e-2)).result()
    for name, config in (("importance_sampling", {}), ("ppo", {}), ("ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.05}), ("cispo", {}),
                         ("dro", {"beta": 0.1}), ("gspo", {"clip_low_threshold": 0.99, "clip_high_threshold": 1.01})):
        data, _ = rl_data(groups, **({"sequence_ratio_mask": 1.0} if name == "gspo" else {}))
        result = w.trainer.forward(data, name, config).result()
        total = 0.0
        for d, row in zip(data, logprobs_of(result)):
            x = {k: torch.tensor(v.data, dtype=torch.float64) for k, v in d.loss_fn_inputs.items()}
            p, q, a = torch.tensor(row, dtype=torch.float64), x["logprobs"], x["advantages"]
            ratio = torch.exp(p - q)
            if name == "gspo":
                ratio = torch.exp((p - q)[x["sequence_ratio_mask"] != 0].mean()).expand(len(p))
            low, high = config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2)
            if name == "cispo":
                loss = -(ratio.clamp(0, 4) * p * a)
            elif name == "dro":
                loss = -(p * a - 0.05 * (p - q) ** 2)[a != 0]
            elif name == "importance_sampling":
                loss = -(ratio * a)
            else:
                loss = -torch.minimum(ratio * a, ratio.clamp(low, high) * a)
            total += float(loss[a != 0].sum() if name != "dro" else loss.sum())
        assert abs(result.metrics["loss:sum"] - total) < 1e-9 * max(1, abs(total)), (name, result.metrics, total)


@check
def custom_loss(w):
    """A loss of the client's own: forward, then backward with its coefficients: that of cross_entropy gives its weights."""
    texts = [w.ids(text) for text in PROMPTS]
    weights = [np.linspace(0.5, 1.5, len(ids) - 1).astype(np.float32).tolist() for ids in texts]

    def own(data, logprobs):
        loss = sum(-(torch.tensor(row) * p).sum() for row, p in zip(weights, logprobs))
        return loss, {"own": 1.0}

    a, b = w.new(seed=3), w.new(seed=3)
    result = a.forward_backward_custom([datum(ids) for ids in texts], own).result()
    assert result.metrics["own"] == 1.0 and result.metrics["loss:sum"] > 0
    b.forward_backward([datum(ids, weights=row) for ids, row in zip(texts, weights)], "cross_entropy").result()
    same_after_step(w, a, b)


def state_of(w, client):
    """Bits that tell one set of weights from another."""
    data = [datum(w.ids(text)) for text in PROMPTS]
    return b"".join(row.tobytes() for row in logprobs_of(client.forward(data, "cross_entropy").result()))


def same_after_step(w, *clients):
    for client in clients:
        client.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    assert len({state_of(w, client) for client in clients}) == 1


@check
def accumulation(w):
    """Gradients of several calls until the step are those of one call with all data, in every bit."""
    data = [datum(w.ids(text * 2)) for text in PROMPTS]
    a, b, c, other = (w.new(seed=3) for _ in range(4))
    a.forward_backward(data, "cross_entropy").result()
    other.forward_backward(data[:2], "cross_entropy").result()
    other.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    for one in data:
        b.forward_backward([one], "cross_entropy").result()
    together = [c.forward_backward([one], "cross_entropy") for one in data]
    [future.result() for future in together]
    same_after_step(w, a, b, c)
    assert state_of(w, a) != state_of(w, other)


@check
def other_targets(w):
    """Targets that are not the next token, and several at a position."""
    ids = w.ids(PROMPTS[0])
    targets = [(5 * i + 11) % 600 for i in range(len(ids) - 1)]
    data = [types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs={"target_tokens": targets, "weights": [1.0] * len(targets)})]
    one, = logprobs_of(w.trainer.forward(data, "cross_entropy").result())
    client = w.trainer.save_weights_and_get_sampling_client().result()
    for at in (0, 3, len(targets) - 1):
        got = client.compute_logprobs(types.ModelInput.from_ints([*ids[: at + 1], targets[at]])).result()
        assert np.float32(got[-1]) == one[at]
    two = np.stack([targets, ids[1:]], axis=1)
    data = [types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs={
        "target_tokens": torch.tensor(two), "weights": torch.tensor([[0.25, 0.75]] * len(targets))})]
    result = w.trainer.forward_backward(data, "cross_entropy").result()
    tensor = result.loss_fn_outputs[0]["logprobs"]
    assert tensor.shape == [len(targets), 2]
    assert tensor.to_numpy()[:, 0].astype(np.float32).tobytes() == one.tobytes()
    w.trainer.optim_step(types.AdamParams(learning_rate=0.0)).result()


@check
def sampling(w):
    client = w.service.create_sampling_client(base_model=server.NAME).result()
    prompt = types.ModelInput.from_ints(w.ids(PROMPTS[0]))
    params = types.SamplingParams(max_tokens=6, seed=1, temperature=0.7, top_k=50, top_p=0.9, stop=[])
    a, b = (client.sample(prompt, 3, params, include_prompt_logprobs=True, topk_prompt_logprobs=3, topk_sample_logprobs=2).result() for _ in range(2))
    for x, y in zip(a.sequences, b.sequences):
        assert x.tokens == y.tokens and x.logprobs == y.logprobs and x.stop_reason == "length" and len(x.tokens) == 6
        assert len(x.topk_logprobs) == 6 and len(x.topk_logprobs[0]) == 2
    assert len({s.sequence_id for s in [*a.sequences, *b.sequences]}) == 6
    assert a.prompt_logprobs[0] is None and a.topk_prompt_logprobs[0] is None and len(a.topk_prompt_logprobs[1]) == 3
    assert max(p for _, p in a.topk_prompt_logprobs[2]) >= a.prompt_logprobs[2]
    assert b.prompt_cache_hit_tokens == 0  # prompts with log-probabilities are computed again
    tail = client.compute_logprobs(prompt, prompt_logprobs_last_n=3).result()
    assert tail[:-3] == [None] * (prompt.length - 3) and tail[-3:] == a.prompt_logprobs[-3:]
    prompt = types.ModelInput.from_ints(w.tokenizer.apply_chat_template([{"role": "user", "content": PROMPTS[0]}], add_generation_prompt=True, return_dict=False))
    greedy = client.sample(prompt, 1, types.SamplingParams(max_tokens=40, temperature=0.0)).result().sequences[0]
    text = w.tokenizer.decode(greedy.tokens)
    stop = client.sample(prompt, 1, types.SamplingParams(max_tokens=40, temperature=0.0, stop=[greedy.tokens[3]])).result().sequences[0]
    assert stop.stop_reason == "stop" and stop.tokens[-1] == greedy.tokens[3] and greedy.tokens[: len(stop.tokens)] == stop.tokens
    word = text[4:7]
    at = client.sample(prompt, 1, types.SamplingParams(max_tokens=40, temperature=0.0, stop=word)).result().sequences[0]
    assert at.stop_reason == "stop" and word in w.tokenizer.decode(at.tokens) and len(at.tokens) < len(greedy.tokens)
    prompt = types.ModelInput.from_ints(w.ids(PROMPTS[0]))
    assert pickle.loads(pickle.dumps(client)).sample(prompt, 1, params).result().sequences[0].tokens == a.sequences[0].tokens


@check
def tokens_at_positions(w):
    """target_prompt_logprobs, dense and sparse, and prompt_alt_tokens_k: what prompts that end with the token have."""
    client = w.trainer.save_weights_and_get_sampling_client().result()
    ids = w.ids(PROMPTS[0])
    prompt, params = types.ModelInput.from_ints(ids), types.SamplingParams(max_tokens=1, seed=4)
    wanted = torch.full((len(ids) - 1, 3), -1, dtype=torch.int64)
    wanted[2] = torch.tensor([5, 17, 300])
    wanted[-1, 1] = 40
    for tensor in (types.TensorData.from_torch(wanted), types.TensorData.from_torch_sparse(wanted, pad_value=-1)):
        got = client.sample(prompt, 1, params, target_prompt_logprobs=tensor).result().target_prompt_logprobs
        assert (got.sparse_crow_indices is None) == (tensor.sparse_crow_indices is None)
        got = got.to_numpy()
        assert got.shape == (len(ids) - 1, 3) and np.count_nonzero(got) == 4
        for row, column in ((2, 0), (2, 2), (len(ids) - 2, 1)):
            one = client.compute_logprobs(types.ModelInput.from_ints([*ids[: row + 1], int(wanted[row, column])])).result()[-1]
            assert np.float32(one) == got[row, column]
    a, b = (client.sample(prompt, 1, params, prompt_alt_tokens_k=2).result().prompt_alt_tokens for _ in range(2))
    tokens, values = a.tokens.to_numpy(), a.logprobs.to_numpy()
    assert tokens.shape == values.shape == (len(ids) - 1, 2) and (tokens == b.tokens.to_numpy()).all()
    one = client.compute_logprobs(types.ModelInput.from_ints([*ids[:4], int(tokens[3, 1])])).result()[-1]
    assert np.float32(one) == values[3, 1]
    wrong = types.TensorData(data=[1, 2], dtype="int64", shape=[1, 2])
    fails(lambda: client.sample(prompt, 1, params, target_prompt_logprobs=wrong).result(), tinker.BadRequestError, "target_prompt_logprobs", "[1, 2]")


@check
def files(w):
    """Checkpoints with and without the optimizer; lists; links to files; removal."""
    import httpx

    trainer = w.new(seed=11)
    data = [datum(w.ids(text)) for text in PROMPTS]
    trainer.forward_backward(data, "cross_entropy").result()
    trainer.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    path = trainer.save_state("one", ttl_seconds=7200, user_metadata={"a": "b"}).result().path
    fails(lambda: trainer.save_state("one").result(), tinker.RequestFailedError, "found a checkpoint")
    assert trainer.save_state("one", overwrite=True).result().path == path
    fails(lambda: trainer.save_state("../one").result(), tinker.RequestFailedError, "name of a checkpoint", "../one")
    sampler = trainer.save_weights_for_sampler("draw").result().path
    external = trainer.save_weights_external("out").result().path
    info = w.rest.get_weights_info_by_tinker_path(path).result()
    assert info.base_model == server.NAME and info.is_lora == (RANK > 0) and info.lora_rank == (RANK or None)
    whole = w.service.create_training_client_from_state_with_optimizer(path).result()
    light = w.service.create_training_client_from_state(path).result()
    for client in (trainer, whole, light):
        client.forward_backward(data, "cross_entropy").result()
    same_after_step(w, trainer, whole)
    light.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    assert state_of(w, light) != state_of(w, trainer)  # its optimizer began anew
    client = w.service.create_sampling_client(model_path=sampler).result()
    assert client.get_base_model() == server.NAME
    assert client.compute_logprobs(types.ModelInput.from_ints(w.ids(PROMPTS[0]))).result()[0] is None
    listed = {c.tinker_path: c for c in w.rest.list_checkpoints(trainer.model_id).result().checkpoints}
    assert set(listed) == {path, sampler, external} and listed[path].expires_at is None and listed[path].size_bytes > 0
    assert {c.checkpoint_type for c in listed.values()} == {"training", "sampler", "external"}
    run = w.rest.get_training_run_by_tinker_path(path).result()
    assert run.last_checkpoint.tinker_path == path and run.last_sampler_checkpoint.tinker_path == sampler
    assert w.rest.list_training_runs(limit=2).result().cursor.total_count >= 3
    w.rest.publish_checkpoint_from_tinker_path(path).result()
    w.rest.set_checkpoint_ttl_from_tinker_path(path, 3600).result()
    now = {c.tinker_path: c for c in w.rest.list_user_checkpoints().result().checkpoints}[path]
    assert now.public and now.expires_at is not None
    copied = w.rest.copy_weights(sampler, destination_project_id="archive").result()
    assert copied != sampler and w.service.create_sampling_client(model_path=copied).result()
    urls = w.rest.get_external_weights_urls(external).result().urls
    assert ("adapter_config.json" if RANK else "config.json") in urls and "checkpoint.json" not in urls
    for name, url in urls.items():
        assert httpx.get(url).status_code == 200, name
        assert httpx.get(url.replace("key=", "key=0")).status_code == 403
    w.rest.delete_checkpoint_from_tinker_path(sampler).result()
    fails(lambda: w.service.create_sampling_client(model_path=sampler).result(), tinker.NotFoundError, "checkpoint", sampler)


@check
def two_models_at_once(w):
    """Interleaved steps of two models are those of each alone; each samples from its own weights."""
    data = [[datum(w.ids(text)) for text in PROMPTS], [datum(w.ids(text[::-1])) for text in PROMPTS]]

    def learn(clients):
        for _ in range(3):
            waiting = []
            for client, own in clients:
                waiting += [client.forward_backward(own, "cross_entropy"), client.optim_step(types.AdamParams(learning_rate=1e-3))]
            [future.result() for future in waiting]

    def draw(client):
        return [list(s.tokens) + list(s.logprobs) for _, r in sampled(w, client.save_weights_and_get_sampling_client().result()) for s in r.sequences]

    a, b, c, d = (w.new(seed=5) for _ in range(4))
    learn([(a, data[0]), (b, data[1])])
    learn([(c, data[0])])
    learn([(d, data[1])])
    samplers = [x.save_weights_and_get_sampling_client().result() for x in (a, b)]
    prompt = types.ModelInput.from_ints(w.ids(PROMPTS[0]))
    mixed = [s.sample(prompt, 2, types.SamplingParams(max_tokens=8, seed=3, stop=[])) for _ in range(3) for s in samplers]
    mixed = [[(s.tokens, s.logprobs) for s in f.result().sequences] for f in mixed]
    assert mixed[0] == mixed[2] == mixed[4] and mixed[1] == mixed[3] == mixed[5] and mixed[0] != mixed[1]
    assert draw(a) == draw(c) and draw(b) == draw(d) and draw(a) != draw(b)


@check
def wrong_requests(w):
    trainer = w.new()
    ids = w.ids(PROMPTS[0])
    bad = tinker.RequestFailedError
    fails(lambda: trainer.optim_step(types.AdamParams()).result(), bad, "forward_backward")
    fails(lambda: trainer.forward_backward([datum(ids, advantages=[1.0] * (len(ids) - 1))], "importance_sampling").result(), bad, "data[0]: logprobs", "none")
    fails(lambda: trainer.forward_backward([datum(ids, weights=[1.0])], "cross_entropy").result(), bad, "data[0]: weights: wanted shape", "[1]")
    fails(lambda: trainer.forward_backward([datum(ids, mask=torch.ones(len(ids) - 1))], "cross_entropy").result(), bad, "found mask")
    fails(lambda: trainer.forward_backward([datum(ids)], "stable_reinforce").result(), bad, "loss_fn", "--stable-reinforce")
    fails(lambda: trainer.forward_backward([datum(ids)], "cross_entropy", {"beta": 1.0}).result(), bad, "loss_fn_config", "beta")
    fails(lambda: trainer.forward_backward([datum([5, 999999, 3])], "cross_entropy").result(), bad, "999999")
    fails(lambda: trainer.forward_backward([datum([5] * 3000)], "cross_entropy").result(), bad, "2047", "2999")
    image = types.Datum(model_input=types.ModelInput(chunks=[types.ImageChunk(data=b"x", format="png", expected_tokens=1)]), loss_fn_inputs={"target_tokens": [1]})
    fails(lambda: trainer.forward_backward([image], "cross_entropy").result(), bad, "chunk 0", "text")
    assert trainer.forward_backward([datum(ids)], "cross_entropy").result().metrics  # the model goes on
    fails(lambda: w.service.create_lora_training_client("Qwen/Other", rank=4).result(), tinker.BadRequestError, "base_model", server.NAME, "Qwen/Other")
    fails(lambda: w.service.create_lora_training_client(server.NAME, rank=5000).result(), tinker.BadRequestError, "rank", "5000")
    fails(lambda: w.service.create_training_client_from_state("tinker://no:train:0/weights/x").result(), tinker.NotFoundError, "no:train:0")
    client = w.service.create_sampling_client(base_model=server.NAME).result()
    prompt = types.ModelInput.from_ints(ids)
    fails(lambda: client.sample(prompt, 0, types.SamplingParams(max_tokens=1)).result(), tinker.BadRequestError, "num_samples")
    fails(lambda: client.sample(prompt, 1, types.SamplingParams(max_tokens=1), topk_prompt_logprobs=99).result(), tinker.BadRequestError, "topk_prompt_logprobs", "99")
    fails(lambda: client.sample(types.ModelInput.from_ints([5] * 2100), 1, types.SamplingParams(max_tokens=1)).result(), bad, "2048")
    fails(lambda: client.sample(types.ModelInput.empty(), 1, types.SamplingParams(max_tokens=1)).result(), tinker.BadRequestError, "prompt")
    other = tinker.ServiceClient(base_url=w.url, api_key="tml-wrong")
    fails(lambda: other.create_sampling_client(base_model=server.NAME).result(), tinker.AuthenticationError, "X-API-Key")


@check
def abandoned_samples(w):
    """A future that is given up ends in the server, which goes on."""
    client = w.service.create_sampling_client(base_model=server.NAME).result()
    prompt = types.ModelInput.from_ints(w.ids(PROMPTS[0]))

    async def give_up():
        task = asyncio.ensure_future(client.sample(prompt, 64, types.SamplingParams(max_tokens=1900, stop=[])).coroutine())
        await asyncio.sleep(0.2)
        task.cancel()

    asyncio.run(give_up())
    assert client.sample(prompt, 1, types.SamplingParams(max_tokens=2)).result(timeout=60).sequences


def restart(path, model):
    """After a restart checkpoints, samplers and models that lived are there, and steps go on as without it."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--served-model-name", server.NAME, "--state", folder)
        with server.serving(path, model, *flags) as first:
            port = first.port
            w = World(first.url)
            trainer, straight = w.trainer, w.new(seed=7)
            data = [datum(w.ids(text)) for text in PROMPTS]
            sampler = w.service.create_sampling_client(model_path=trainer.save_weights_for_sampler("start").result().path).result()
            prompt = types.ModelInput.from_ints(w.ids(PROMPTS[0]))
            params = types.SamplingParams(max_tokens=8, seed=3, stop=[])
            before = sampler.sample(prompt, 1, params).result().sequences[0].tokens
            for client in (trainer, straight):
                client.forward_backward(data, "cross_entropy").result()
                client.optim_step(types.AdamParams(learning_rate=1e-3)).result()
            straight.forward_backward(data, "cross_entropy").result()
            straight.optim_step(types.AdamParams(learning_rate=1e-3)).result()
            want = state_of(w, straight)
            first.stop()
        with server.serving(path, model, *flags, "--port", str(port)):
            assert sampler.sample(prompt, 1, params).result().sequences[0].tokens == before
            trainer.forward_backward(data, "cross_entropy").result()
            trainer.optim_step(types.AdamParams(learning_rate=1e-3)).result()
            assert state_of(w, trainer) == want
            assert trainer.model_id in [r.training_run_id for r in w.rest.list_training_runs().result().training_runs]


def run(path):
    with server.serving(path, TINY_MATH, "--served-model-name", server.NAME, "--max-models", "32") as running:
        world = World(running.url)
        for one in CHECKS:
            try:
                one(world)
            except BaseException:
                print(running.text()[-6000:])
                raise
            print(f"{one.__name__}: as wanted", flush=True)
        world.service.close("success", None).result()
        running.stop()
    restart(path, TINY_MATH)


def documents(path):
    """The blocks of docs/TINKER.md, and the example, as a reader types them."""
    root = server.ROOT
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([path, *sys.path[1:]]), "TINKER_API_KEY": server.KEY}
    text = (root / "docs/TINKER.md").read_text()
    code, = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    with server.serving(path, "models/tiny-math") as running:
        code = code.replace("http://127.0.0.1:8000", running.url).replace("tml-any", server.KEY)
        ran = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, text=True, capture_output=True)
    first, second, same = ran.stdout.split("\n")[:3] if ran.returncode == 0 else ("", "", ran.stderr)
    assert first.endswith(" 1.0") and second.endswith(" 2.0") and float(first.split()[0]) > float(second.split()[0]) and same == "True", ran
    with server.serving(path, "models/tiny-sum") as running:
        ran = subprocess.run([sys.executable, "examples/tinker_rl.py", "30"], cwd=root, env=environment | {"TINKER_BASE_URL": running.url}, text=True, capture_output=True)
    rows = re.findall(r"^step \d+: mean reward (\S+), (\d+) of \2 tokens equal in every bit$", ran.stdout, re.M)
    assert len(rows) == 3 and float(rows[-1][0]) > 0.55, ran


def main():
    global RANK
    with server.package() as path, server.hub(TINY_MATH) as env:
        os.environ.update(env)
        for RANK in RANKS:
            run(path)
        documents(path)
    print(f"tinker {tinker.__version__}: {len(CHECKS) + 1} groups of calls, with rank {RANKS}")


if __name__ == "__main__":
    main()
