"""Every public function of the package against wrong types, sizes and numbers: an InvarError that names the argument, and never
another exception, a cut value or a crash. Numbers and arrays of numpy are taken wherever Python's are."""
import asyncio
import copy
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import invar
from invar import (
    LLM, AsyncLLM, GuidedDecodingParams, InvarError, Policy, PolicySequence, Receipt, SamplingParams, Sequence, Status,
    StructuredOutputsParams, Tokenizer, Trainer, testing,
)  # fmt: skip
from support import MODEL

NAN, INF, HUGE = float("nan"), float("inf"), 2**64 + 1
NO_NUMBER = [NAN, INF, "1", b"1", True, [1], {}, 1j, np.array([1.0]), 10**400]
NO_INTEGER = [*NO_NUMBER, 1.0, 1.5, HUGE, -(2**70), np.float32(1), np.bool_(True)]
NO_FLAG = ["no", "", None, 0, 1, 2.0, [], np.int64(1)]
NO_TEXT = [b"x", 1, 1.5, ["x"], {}, "a\0b"]
NO_IDS = [b"123", bytearray(b"1"), "12", 5, 1.5, {1: 2}, {1, 2}, [1.0], [1.5, 2], [True], [None], ["1"], [b"1"], [[1]], [-1],
          [2**31], [HUGE], np.array([1.0]), np.array([[1, 2]]), np.array([True]), np.array(3), np.array(["1"])]  # fmt: skip
SAME_IDS = [(3, 4, 5), range(3, 6), np.array([3, 4, 5]), np.array([3, 4, 5], np.uint8), np.array([0, 3, 4, 5])[1:],
            [np.int32(3), np.int64(4), 5], np.array([3, 4, 5], ">i8"), iter([3, 4, 5])]  # fmt: skip


@pytest.fixture(scope="module")
def llm():
    with LLM(MODEL, trainable=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def trainer():
    with Trainer(MODEL, pass_tokens=512) as one:
        yield one


def refused(name, call, *args, **fields):
    """An InvarError with the name of the argument."""
    with pytest.raises(InvarError) as caught:
        call(*args, **fields)
    assert name in str(caught.value).replace("KL", "kl") and "wanted" in str(caught.value), caught.value
    return caught.value


SAMPLING = {  # field: values that are refused
    "n": [*NO_INTEGER, None, 0, -1, 10**9],
    "temperature": [*NO_NUMBER, None, -1, 101],
    "top_p": [*NO_NUMBER, None, 0, -0.1, 1.01],
    "min_p": [*NO_NUMBER, None, -0.1, 1.01],
    "top_k": [*NO_INTEGER, None, -2, 2**31],
    "seed": NO_INTEGER,
    "stop": [b"x", 1, {}, {"a"}, [b"x"], [1], ["x", None], "a\0b", ["a\0b"]],
    "stop_token_ids": NO_IDS,
    "include_stop_str_in_output": NO_FLAG,
    "ignore_eos": NO_FLAG,
    "max_tokens": [*NO_INTEGER, 0, -1, 2**40],
    "min_tokens": [*NO_INTEGER, None, -1],
    "presence_penalty": [*NO_NUMBER, None, 3],
    "frequency_penalty": [*NO_NUMBER, None, -3],
    "repetition_penalty": [*NO_NUMBER, None, 0, -1],
    "logit_bias": [[], "x", 1, {1.5: 1}, {"x": 1}, {-1: 1}, {True: 1}, {None: 1}, {1: NAN}, {1: "1"}, {1: 101}, {1: 1, "1": 2}],
    "logprobs": [*NO_INTEGER, -1, 21],
    "prompt_logprobs": [*NO_INTEGER, -1, 21],
    "detokenize": NO_FLAG,
    "skip_special_tokens": NO_FLAG,
    "structured_outputs": [{"regex": "a"}, "a", 1, StructuredOutputsParams],
    "guided_decoding": [{"regex": "a"}, "a"],
    "output_kind": ["DELTA", 7, None],
    "sampling_logprobs": NO_FLAG,
    "logits": NO_FLAG,
    "receipt": NO_FLAG,
    "priority": [*NO_INTEGER, None, 2**31],
}
LACKING = {"bad_words", "allowed_token_ids", "logits_processors", "truncate_prompt_tokens", "spaces_between_special_tokens",
           "extra_args", "flat_logprobs", "best_of"}  # fmt: skip


def test_the_table_is_whole():
    assert set(SAMPLING) | LACKING >= set(SamplingParams.__dataclass_fields__)


@pytest.mark.parametrize("name", SAMPLING)
def test_sampling_params(llm, name):
    """When they are made, and when a field that was assigned afterwards is used."""
    for value in SAMPLING[name]:
        refused(name, SamplingParams, **{name: value})
        params = SamplingParams(max_tokens=2)
        setattr(params, name, value)
        refused(name, llm.generate, "2 + 2 =", params, use_tqdm=False)
        refused(name, params.checked)
    assert llm.stats()["running"] == llm.stats()["waiting"] == 0


def test_sampling_params_know_their_fields(llm):
    params = SamplingParams()
    with pytest.raises(AttributeError):
        params.max_token = 3  # ignored, it would be a limit that does not hold
    with pytest.raises(AttributeError):
        StructuredOutputsParams(regex="a").patern = "b"
    for given in (1, "x", {"n": 1}, [1], [SamplingParams], [None]):
        refused("sampling_params", llm.generate, ["2"], given, use_tqdm=False)
        refused("sampling_params", llm.chat, [{"role": "user", "content": "2"}], given, use_tqdm=False)
    params = SamplingParams(stop=["a"], logit_bias={"3": np.float32(1)}, structured_outputs=GuidedDecodingParams(choice=["x"]))
    for other in (copy.deepcopy(params), copy.copy(params), pickle.loads(pickle.dumps(params)), params.clone()):
        assert other == params and type(other.structured_outputs) is GuidedDecodingParams
    clone = params.clone()
    clone.stop.append("b"), clone.structured_outputs.choice.append("y")
    assert params.stop == ["a"] and params.structured_outputs.choice == ["x"]


def test_numpy_parameters(llm):
    """Parameters, seeds and ids of numpy are those of Python."""
    plain = {"n": 2, "temperature": 0.5, "top_p": 0.75, "top_k": 8, "min_p": 0.125, "seed": 2**63 + 5, "max_tokens": 7,
             "min_tokens": 2, "presence_penalty": 0.5, "logprobs": 2, "priority": 1, "repetition_penalty": 1.25}  # fmt: skip
    wide = {name: np.uint64(v) if name == "seed" else np.float32(v) if isinstance(v, float) else np.int64(v) for name, v in plain.items()}
    wide |= {"logit_bias": {np.int64(5): np.float64(2)}, "stop_token_ids": np.array([9]), "ignore_eos": np.bool_(False)}
    plain |= {"logit_bias": {5: 2.0}, "stop_token_ids": [9]}
    assert SamplingParams(**wide) == SamplingParams(**plain)
    assert all(type(value) in (int, float, bool) for value in (getattr(SamplingParams(**wide), name) for name in ("n", "seed", "top_p")))
    [a], [b] = (llm.generate("2 + 2 =", SamplingParams(**fields), use_tqdm=False) for fields in (plain, wide))
    assert [x.digest for x in a.outputs] == [x.digest for x in b.outputs]
    with LLM(MODEL, seed=np.int64(3), max_num_seqs=np.int32(2)) as other, LLM(MODEL, seed=3) as third:
        assert other.generate("2", use_tqdm=False)[0].outputs[0].digest == third.generate("2", use_tqdm=False)[0].outputs[0].digest


def test_seeds(llm):
    for seed in (-(2**63), -1, 0, 2**63, 2**64 - 1):
        [output] = llm.generate("2 =", SamplingParams(seed=seed, max_tokens=1), use_tqdm=False)
        assert output.outputs[0].seed == seed % 2**64
    for seed in (2**64, 2**64 + 1, -(2**63) - 1):
        refused("seed", LLM, MODEL, seed=seed)


@pytest.mark.parametrize("i", range(len(SAME_IDS)))
def test_ids_are_read(llm, trainer, i):
    ids = SAME_IDS[i]
    if not hasattr(ids, "__len__"):
        ids = list(ids)
    params = SamplingParams(seed=1, max_tokens=3)
    [wanted] = llm.generate({"prompt_token_ids": [3, 4, 5]}, params, use_tqdm=False)
    for prompt in (ids, [ids], {"prompt_token_ids": ids}, [{"prompt_token_ids": ids}]):
        [found] = llm.generate(prompt, params, use_tqdm=False)
        assert found.prompt_token_ids == [3, 4, 5] and found.outputs[0].digest == wanted.outputs[0].digest
        assert all(type(one) is int for one in found.prompt_token_ids)
    assert llm.score([3, 4], ids, use_tqdm=False)[0].token_ids == [3, 4, 3, 4, 5]
    assert (llm.logits(ids) == llm.logits([3, 4, 5])).all()
    assert llm.decode(ids) == llm.decode([3, 4, 5]) and llm.get_tokenizer().decode(np.int64(3)) == llm.decode([3])
    assert llm.get_tokenizer().convert_ids_to_tokens(ids) == llm.get_tokenizer().convert_ids_to_tokens([3, 4, 5])
    assert (trainer.score([Sequence(ids)])[0] == trainer.score([Sequence([3, 4, 5])])[0]).all()


def test_several_prompts_of_an_array(llm):
    found = llm.generate(np.array([[3, 4], [5, 6]]), SamplingParams(max_tokens=1), use_tqdm=False)
    assert [one.prompt_token_ids for one in found] == [[3, 4], [5, 6]]
    refused("prompts", llm.generate, np.zeros((2, 2, 2), int))
    assert llm.generate([], use_tqdm=False) == []


@pytest.mark.parametrize("i", range(len(NO_IDS)))
def test_ids_are_refused(llm, trainer, i):
    ids = NO_IDS[i]
    tokenizer, one = llm.get_tokenizer(), SamplingParams(max_tokens=1)
    refused("prompt", llm.generate, {"prompt_token_ids": ids}, one, use_tqdm=False)
    refused("prompt", llm.logits, {"prompt_token_ids": ids})
    refused("prompt", llm.score, {"prompt_token_ids": ids}, use_tqdm=False)
    if not (isinstance(ids, np.ndarray) and ids.shape == ()) and type(ids) is not int:  # one id
        refused("token ids", tokenizer.decode, ids)
    if type(ids) is not list or ids != [-1]:  # outside the vocabulary
        refused("token ids", tokenizer.convert_ids_to_tokens, ids)
    refused("ids", trainer.score, [Sequence(ids)])
    if not isinstance(ids, (str, np.ndarray)) and ids != [[1]] and ids != ["1"]:  # those are prompts
        refused("prompt", llm.generate, ids, one, use_tqdm=False)
    assert llm.stats()["running"] == llm.stats()["waiting"] == 0


PROMPTS = [None, 5, 1.5, b"text", bytearray(b"1"), {"prompt": b"x"}, {"prompt": 5}, {}, {"prompt": None}, {"text": "x"}, {1: 2},
           [None], [b"x"], [1, "x"], ["x", 5], ["x", None], ["x", [1.5]], "\ud800", object()]  # fmt: skip


@pytest.mark.parametrize("i", range(len(PROMPTS)))
def test_prompts(llm, i):
    for call in (llm.generate, llm.score):
        refused("prompt", call, PROMPTS[i], use_tqdm=False)

    async def stream(engine):
        async for _ in engine.generate(PROMPTS[i], SamplingParams(max_tokens=1)):
            pass

    if not isinstance(PROMPTS[i], list):
        refused("prompt", llm.logits, PROMPTS[i])
    assert llm.stats()["running"] == llm.stats()["waiting"] == 0


MESSAGES = [None, 5, "hi", b"hi", {"role": "user", "content": "x"}, ["hi"], [5], [[5]], [[{"role": "user", "content": "x"}], "x"],
            [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": [5]}],
            [{"role": "user", "content": [{"type": "text", "text": 5}]}], [{"role": "user", "content": {1, 2}}]]  # fmt: skip


@pytest.mark.parametrize("i", range(len(MESSAGES)))
def test_messages(llm, i):
    with pytest.raises(InvarError, match="message|chat"):
        llm.chat(MESSAGES[i], use_tqdm=False)
    if MESSAGES[i] != [[5]]:
        with pytest.raises(InvarError, match="message|chat"):
            llm.get_tokenizer().apply_chat_template(MESSAGES[i])


def test_async():
    async def one(engine, *args, **fields):
        async for output in engine.generate(*args, **fields):
            found = output
        return found

    async def all_of_them():
        with AsyncLLM(MODEL) as engine:
            wrong = SamplingParams()
            wrong.temperature = NAN
            for name, args in (("temperature", ["2", wrong]), ("sampling_params", ["2", {"n": 1}]), ("prompt", [b"2"]),
                               ("prompt", [[1.5]]), ("request_id", ["2", None, 5])):  # fmt: skip
                with pytest.raises(InvarError, match=name):
                    await one(engine, *args)
            params = SamplingParams(max_tokens=np.int64(3), seed=np.int64(1))
            task = asyncio.ensure_future(one(engine, np.array([3, 4, 5]), params))
            await asyncio.sleep(0)
            params.max_tokens = "later"  # the request has a copy
            assert len((await task).outputs[0].token_ids) == 3

    asyncio.run(all_of_them())


FORMS = [{}, {"regex": 5}, {"regex": b"a"}, {"regex": "a\0"}, {"choice": "yes"}, {"choice": [1]}, {"choice": b"x"}, {"choice": 5},
         {"grammar": 5}, {"json": 5}, {"json": True}, {"json": b"{}"}, {"json_object": "yes"}, {"json_object": 1},
         {"regex": "a", "choice": ["b"]}]  # fmt: skip


@pytest.mark.parametrize("i", range(len(FORMS)))
def test_structured_outputs(i):
    with pytest.raises(InvarError, match="StructuredOutputsParams"):
        StructuredOutputsParams(**FORMS[i])


def test_structured_outputs_when_used(llm):
    for schema in ({"const": NAN}, {"const": object()}, {"const": "\ud800"}):
        form = StructuredOutputsParams(json=schema)
        refused("structured_outputs", llm.generate, "2", SamplingParams(structured_outputs=form), use_tqdm=False)
    form = StructuredOutputsParams(choice=["yes"])
    form.choice = "yes"  # would be y, e or s
    refused("choice", llm.generate, "2", params_with(form), use_tqdm=False)


def params_with(form):
    params = SamplingParams()
    params.structured_outputs = form
    return params


ENGINE = {
    "model": [None, 5, b"models", "", "a\0b", ["x"], "no/such-model", "/nowhere", "nothing-here"],
    "dtype": ["int7", 5, "a\0b"],
    "device": [5, None, "tpu", "cpu\0x"],
    "arithmetic": [5, "exact"],
    "isa": [5, "mmx"],
    "numerics": [None, "loose"],
    "load_format": [5, "gguf"],
    "threads": [*NO_INTEGER, None, -1],
    "tensor_parallel_size": [*NO_INTEGER, None, 0, 9],
    "dummy_seed": [*NO_INTEGER, None, -1],
    "seed": NO_INTEGER,
    "max_model_len": [*NO_INTEGER, 0, -5],
    "max_num_seqs": [*NO_INTEGER, 0],
    "max_num_batched_tokens": [*NO_INTEGER, 0],
    "kv_cache_memory_bytes": [*NO_INTEGER, 0, -1],
    "state_cache_memory_bytes": [*NO_INTEGER, 0, -1],
    "rank_timeout_ms": [*NO_INTEGER, 0],
    "step_target_ms": [*NO_INTEGER, -1],
    "gpu_memory_utilization": [*NO_NUMBER, 0, 1.5],
    "enable_prefix_caching": NO_FLAG,
    "enforce_eager": NO_FLAG,
    "enable_expert_parallel": [*NO_FLAG, True],
    "trainable": NO_FLAG,
    "trust_remote_code": NO_FLAG,
    "disable_log_stats": NO_FLAG,
    "speculative_config": ["ngram", 5, {"method": 5}, {"method": "ngram", "num_speculative_tokens": "4"}, {"draft": "x"}],
    "quantization": ["awq"],
    "tokenizer": ["elsewhere", 5],
    "revision": ["main"],
}


@pytest.mark.parametrize("name", ENGINE)
def test_engine_options(name):
    for value in ENGINE[name]:
        options = {"model": MODEL, name: value}
        with pytest.raises(InvarError) as caught:
            LLM(**options).close()
        assert name in str(caught.value) or name.replace("_size", "") in str(caught.value), (value, caught.value)


def test_unknown_options():
    for kind in (InvarError, TypeError):
        with pytest.raises(kind, match="'max_model_length'; 'max_model_len'"):
            LLM(MODEL, max_model_length=5)
    args = invar.AsyncEngineArgs(model=MODEL)
    args.max_num_seqs = "4"
    refused("max_num_seqs", AsyncLLM.from_engine_args, args)


TRAINER = {
    "model": ENGINE["model"],
    "dtype": ["int7", 5],
    "device": [5, None, "tpu"],
    "arithmetic": [5, "exact"],
    "recompute": [5, "some"],
    "virtual_ranks": [*NO_INTEGER, None, -1],
    "betas": [0.9, "ab", (0.9,), (0.9, 0.99, 0.999), (NAN, 0.9), ("0.9", 0.9), (2, 0.9), None, {}],
    "eps": [*NO_NUMBER, None, -1],
    "weight_decay": [*NO_NUMBER, None, -1],
    "run": ["x", 5, {"a": NAN}, {"a": object()}, [1]],
    "decay_all": NO_FLAG,
    "optimizer": NO_FLAG,
    "offload_optimizer": NO_FLAG,
    "threads": [*NO_INTEGER, None, -1],
    "data_parallel_size": [*NO_INTEGER, None, -1],
    "tensor_parallel_size": [*NO_INTEGER, None, -1],
    "pass_tokens": [*NO_INTEGER, None, -1],
    "micro_batch": [*NO_INTEGER, None, -1],
    "dummy_seed": [*NO_INTEGER, None, -1],
}


@pytest.mark.parametrize("name", TRAINER)
def test_trainer_options(name):
    for value in TRAINER[name]:
        options = {"model": MODEL, name: value}
        with pytest.raises(InvarError) as caught:
            Trainer(**options).close()
        assert name.removesuffix("_size") in str(caught.value), (value, caught.value)


NO_ROW = [5, "abc", b"abc", [1], [1, 2, 3, 4], ["a", "b", "c"], [None] * 3, [NAN, 0, 0], [0, INF, 0], [0, 1e300, 0], {0: 1}, {1, 2, 3},
          np.zeros((1, 3)), np.array([1j, 0, 0]), [[1, 2, 3]], [[1], [1, 2], 3], object()]  # fmt: skip


def test_trainer_batches(trainer):
    before = trainer.weights_hash
    for batch in (None, 5, "x", {}, [5], [[1, 2]], Sequence([1, 2]), [None], [], b"x"):
        with pytest.raises(InvarError):
            trainer.step(batch, 1e-4)
        with pytest.raises(InvarError):
            trainer.gradients(batch, 1.0)
    for row in NO_ROW:
        refused("mask", trainer.score, [Sequence([1, 2, 3], mask=row)])
        refused("coefficients", trainer.gradients, [Sequence([1, 2, 3], coefficients=row)], 1.0)
    good = [Sequence([1, 2, 3])]
    for value in [*NO_NUMBER, None, -1]:
        refused("learning_rate", trainer.step, good, value)
        refused("max_norm", trainer.step, good, 1e-4, value)
        refused("temperature", trainer.step, good, 1e-4, 1.0, value)
        refused("temperature", trainer.score, good, value)
        refused("denominator", trainer.gradients, good, value)
        refused("learning_rate", trainer.apply, value)
    refused("temperature", trainer.score, good, 0)
    refused("weigh", trainer.gradients, good, 1.0, weigh=5)
    refused("coefficients", trainer.gradients, good, 1.0, weigh=lambda i, s: setattr(s, "coefficients", [1.0]))
    for name in (5, None, b"x", "no.such.weight", "a\0b"):
        refused("tensor", trainer.gradient, name)
    for shape in ("ab", (-1,), (1.5,), (2**62, 2**62), 5):
        refused("shape", trainer.gradient, "model.norm.weight", shape)
    for call, name, values in ((trainer.save, "keep", NO_INTEGER), (trainer.export, "max_shard_bytes", NO_INTEGER),
                               (trainer.export, "overwrite", NO_FLAG), (trainer.save, "state", ["x", [1], {"a": NAN}])):  # fmt: skip
        for value in values:
            refused(name, call, "/nowhere/at/all", **{name: value})
    for path in (None, 5, "", "a\0b", b"x"):
        for call in (trainer.save, trainer.restore, trainer.export):
            refused("path", call, path)
    for engine in (None, "x", trainer):
        refused("llm", trainer.sync, engine)
    assert trainer.weights_hash == before


def test_trainer_takes_arrays(trainer):
    mask = np.array([False, True, True])
    wanted = trainer.score([Sequence([1, 2, 3], [0, 1, 1])])[0]
    frozen = np.zeros(3, np.float32)
    frozen.flags.writeable = False
    for given in (mask, mask.astype(np.float64), mask.astype(np.float16), tuple(mask.tolist())):
        assert (trainer.score([Sequence(np.array([1, 2, 3]), given, logprobs=frozen)], np.float32(1))[0] == wanted).all()
    assert (frozen == 0).all()


POLICY = {
    "algorithm": [5, None, b"grpo", "ppo2", "grpo\0x"],
    "kl": [5, "k9"],
    "correction": [5, "some"],
    "max_completion": [*NO_INTEGER, None, -1],
    "kl_beta": [*NO_NUMBER, None, -1],
    "eps_low": [*NO_NUMBER, -1],
    "eps_high": [*NO_NUMBER, -1],
    "correction_cap": [*NO_NUMBER, -1],
}


@pytest.mark.parametrize("name", POLICY)
def test_policy_options(name):
    for value in POLICY[name]:
        refused(name, Policy, **{name: value})


def test_policy(llm, trainer):
    policy = Policy("grpo")
    for rewards in ("ab", [NAN, 1], [1, INF], [[1, 2]], [1], ["a", "b"], None, {0: 1}, 5):
        with pytest.raises(InvarError, match="reward|group"):
            policy.advantages([0, 0], rewards)
    for groups in ("ab", [0.0, 0.0], [0, 5], [-1, 0], [2**40, 0], None, 5, [True, True]):
        with pytest.raises(InvarError, match="group"):
            policy.advantages(groups, [1.0, 2.0])
    assert (policy.advantages(np.array([0, 0]), np.array([1, 0])) == policy.advantages([0, 0], [1.0, 0.0])).all()

    def item(**fields):
        return PolicySequence(**{"sequence": Sequence([1, 2, 3]), "behavior": [0, -1, -1], "advantage": 1.0, **fields})

    for row in NO_ROW:
        for name in ("behavior", "old", "reference"):
            refused(name, trainer.policy_step, policy, [item(**{name: row})], 1e-4)
    for value in [*NO_NUMBER, None]:
        refused("advantage", trainer.policy_step, policy, [item(advantage=value)], 1e-4)
    refused("behavior", trainer.policy_step, policy, [item(behavior=None)], 1e-4)
    refused("sequence", trainer.policy_step, policy, [item(sequence=[1, 2, 3])], 1e-4)
    refused("policy", trainer.policy_step, "grpo", [item()], 1e-4)
    for sequences in (None, item(), [Sequence([1, 2])], [5], "x"):
        refused("sequences", trainer.policy_step, policy, sequences, 1e-4)
    for output in (None, "x", llm.score([1, 2], use_tqdm=False)[0]):
        refused("output", PolicySequence.from_output, output)


# ---- a comparison that was not made


OTHER = [{"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}, {"repetition_penalty": 1.2}, {"presence_penalty": 0.5},
         {"frequency_penalty": 0.5}, {"logit_bias": {5: 50.0}}, {"structured_outputs": StructuredOutputsParams(regex="[0-9]+")},
         {"temperature": 0}, {"min_tokens": 4}]  # fmt: skip


@pytest.mark.parametrize("i", range(len(OTHER)))
def test_policy_step_compares_what_was_drawn(llm, trainer, i):
    """An answer that was not drawn from the model's own distribution needs its sampling log-probabilities."""
    [output] = llm.generate("2 + 2 =", SamplingParams(seed=1, max_tokens=8, **OTHER[i]), use_tqdm=False)
    error = refused("sampling_logprobs=True", PolicySequence.from_output, output)
    assert error.status == Status.INVALID
    if OTHER[i] != {"temperature": 0}:
        params = SamplingParams(seed=1, max_tokens=8, sampling_logprobs=True, **OTHER[i])
        [output] = llm.generate("2 + 2 =", params, use_tqdm=False)
        item = PolicySequence.from_output(output, advantage=np.float32(1))
        report = trainer.policy_step(Policy("reinforce"), [item], 0.0, temperature=OTHER[i].get("temperature", 1.0))
        if OTHER[i] != {"min_tokens": 4}:  # it may have masked nothing
            assert (report.equal == report.tokens) == (OTHER[i] == {"temperature": 0.7})


# ---- where a model is


def hub(folder, name, ref="main"):
    """A cache of Hugging Face's tools: files are links to blobs."""
    base = folder / f"models--{name.replace('/', '--')}"
    snapshot = base / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    for file in os.listdir(MODEL):
        os.symlink(os.path.join(MODEL, file), snapshot / file)
    (base / "refs").mkdir()
    (base / "refs" / ref).write_text("0123abcd\n")
    return snapshot


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"])
def test_a_snapshot_is_found(tmp_path, monkeypatch, variable):
    below = {"HF_HUB_CACHE": "", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub", "HOME": ".cache/huggingface/hub"}[variable]
    snapshot = hub(tmp_path / below, "some/model-1B")
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    params = SamplingParams(seed=1, max_tokens=3, receipt=True)
    with LLM("some/model-1B", trainable=True) as llm, LLM(MODEL) as other:
        llm.update_weights("some/model-1B")
        assert llm.model == str(snapshot)
        [a], [b] = (engine.generate("2", params, use_tqdm=False) for engine in (llm, other))
        assert a.outputs[0].digest == b.outputs[0].digest
    assert Tokenizer("some/model-1B").encode("2") == Tokenizer(MODEL).encode("2")
    assert invar.replay(a.outputs[0].receipt, "some/model-1B", threads=1)
    with Trainer("some/model-1B", pass_tokens=512) as one:
        assert one.model == str(snapshot)


def test_no_snapshot(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    hub(tmp_path, "some/branch", "other")
    (hub(tmp_path, "some/half") / "config.json").unlink()
    (tmp_path / "models--some--out" / "refs").mkdir(parents=True)
    (tmp_path / "models--some--out" / "refs" / "main").write_text("../../elsewhere")
    for name in ("Qwen/Qwen3-0.6B", "some/branch", "some/half", "some/out"):
        for kind in (LLM, Tokenizer, Trainer):
            with pytest.raises(InvarError) as caught:
                kind(name)
            assert caught.value.status == Status.NOT_FOUND
            assert f"hf download {name}" in str(caught.value) and str(tmp_path) in str(caught.value)


# ---- the rest


def test_receipts(llm, tmp_path):
    [output] = llm.generate("2", SamplingParams(max_tokens=2, receipt=True), use_tqdm=False)
    text = output.outputs[0].receipt
    (tmp_path / "two").write_text(f"{text}\n{text}\n")
    (tmp_path / "none").write_text("")
    for source in (None, 5, {}, ["x"], "", "{", "{}", b"{}", b"\xff", "/nowhere", tmp_path / "none", tmp_path / "two", tmp_path,
                   tmp_path, text[:-20], text.replace("seed", "sead"), "\ud800{"):  # fmt: skip
        with pytest.raises(InvarError):
            Receipt(source)
        with pytest.raises(InvarError):
            llm.replay(source)
    assert [one.digest for one in Receipt.read_all(tmp_path / "two")] == [output.outputs[0].digest] * 2
    refused("receipt", Receipt.read_all, "/nowhere/at/all/receipt")
    refused("numerics", invar.replay, text, numerics="vanilla")


def test_weights(llm):
    for weights in (None, 5, [5], [("a",)], {"a": 1}, [(5, np.zeros(2))], [("model.norm.weight", "x")], "ab",
                    [("model.norm.weight", np.array(["x"]))], [("model.norm.weight", None)]):  # fmt: skip
        refused("weights", llm.load_weights, weights)
    for path in (None, 5, "", "/nowhere", b"x"):
        with pytest.raises(InvarError):
            llm.update_weights(path)
    assert llm.generate("2", SamplingParams(max_tokens=1), use_tqdm=False)


def test_tokenizer(llm):
    tokenizer = llm.get_tokenizer()
    for text in (None, 5, b"x", ["x"], "\ud800"):
        refused("prompt", tokenizer.encode, text)
    for value in ("x", 1, None):
        refused("add_special_tokens", tokenizer.encode, "x", value)
        refused("skip_special_tokens", tokenizer.decode, [1], value)
    for token in (1.5, "1", True, -1, HUGE, None):
        refused("token id", tokenizer.decoded_token, token)
    for template in (5, b"x", ["x"]):
        refused("chat_template", tokenizer.apply_chat_template, [{"role": "user", "content": "x"}], chat_template=template)
    for tools in ([{"a": object()}], [{"a": NAN}]):
        refused("chat", tokenizer.apply_chat_template, [{"role": "user", "content": "x"}], tools)
    assert tokenizer.decode([2**31 - 1, *tokenizer.encode("2")]) == "2"  # as in transformers


USER = [{"role": "user", "content": "2 + 2"}]
CHAT = {
    "tools": [5, "x", {}, [5], ["x"]],
    "chat_template_kwargs": [5, "x", [1], {1: 2}, {"messages": []}, {"tools": []}],
    "add_generation_prompt": NO_FLAG,
    "continue_final_message": NO_FLAG,
    "chat_template": [5, b"x", "/nowhere.jinja", "no-such-file", ""],
}


@pytest.mark.parametrize("name", CHAT)
def test_chat_options(llm, name):
    for value in CHAT[name]:
        if value is not None or name != "tools":
            refused(name, llm.chat, USER, SamplingParams(max_tokens=1), use_tqdm=False, **{name: value})
    for nothing in ([], [[]], [USER, []]):
        refused("messages", llm.chat, nothing, use_tqdm=False)


def test_async_calls(trainer):
    async def all_of_them():
        with AsyncLLM(MODEL) as engine:
            for name in (5, None):
                with pytest.raises(InvarError, match="request_id"):
                    await engine.abort(name)
            for one in (5, None, "x"):
                with pytest.raises(InvarError, match="trainer"):
                    await engine.sync(one)
            for path in (5, None, "", "/nowhere"):
                with pytest.raises(InvarError):
                    await engine.update_weights(path)
            for messages in (None, "x", [5], []):
                with pytest.raises(InvarError, match="message"):
                    async for _ in engine.chat(messages):
                        pass

    asyncio.run(all_of_them())
    for args in ({"model": MODEL}, MODEL, None):
        refused("args", AsyncLLM.from_engine_args, args)


AUDIT = {
    "url": [None, 5, b"http://x", "", "ftp://x", "http://x:99999", "http://[x", "http://", "a\0b"],
    "model": [5, b"x"],
    "api": [5, "grpc"],
    "api_key": [5, b"x"],
    "prompts": [5, "x", [], [5], [b"x"], {}],
    "requests": [*NO_INTEGER, None, 0],
    "rounds": [*NO_INTEGER, None, 0],
    "max_tokens": [*NO_INTEGER, None, 0],
    "concurrency": [*NO_INTEGER, None, 0],
    "temperature": [*NO_NUMBER, None, -1],
    "seed": [*NO_INTEGER, None],
    "flush": NO_FLAG,
    "timeout": [*NO_NUMBER, None, -1, 0, 1e300],
}


@pytest.mark.parametrize("name", AUDIT)
def test_audit_arguments(name):
    for value in AUDIT[name]:
        refused(name, invar.audit, **{"url": "http://127.0.0.1:1", name: value})


def test_assertions(llm, trainer):
    one = llm.generate("2", SamplingParams(max_tokens=1), use_tqdm=False)
    for wanted, found, name in ((None, one, "wanted"), (one, [5], "found"), ("ab", "cd", "wanted"), ({}, one, "wanted")):
        refused(name, testing.assert_same_outputs, wanted, found)
    for rows in (5, None, [["x"]], [5], "x", [None]):
        refused("found", testing.assert_same_logprobs, one, rows)
    refused("outputs", testing.assert_same_logprobs, None, [])
    refused("b", testing.assert_same_engines, llm, 5, ["2"])
    refused("trainer", testing.assert_same_trainer, llm, llm, ["2"])
    refused("prompts", testing.assert_same_engines, llm, llm, 5)
    refused("sampling_params", testing.assert_same_engines, llm, llm, ["2"], [{"n": 1}])
    testing.assert_same_engines(llm, llm, "2 + 2 =")  # one prompt, not its letters
    testing.assert_same_logprobs(one, [np.array(one[0].outputs[0].token_logprobs, np.float32)])
    for url in (None, 5, "ftp://x"):
        refused("url", testing.assert_same_receipt, url, receipt_of(llm))


def receipt_of(llm):
    return llm.generate("2", SamplingParams(max_tokens=1, receipt=True), use_tqdm=False)[0].outputs[0].receipt


def test_a_closed_engine():
    engine = LLM(MODEL)
    engine.close()
    engine.close()
    for call in (lambda: engine.generate("2"), engine.stats, lambda: engine.encode("2"), lambda: engine.logits([1]),
                 engine.reset_prefix_cache, engine.get_default_sampling_params, lambda: engine.update_weights(MODEL)):  # fmt: skip
        refused("engine", call)


def test_errors_travel():
    for error in (InvarError(Status.BUSY, "full"), pytest.raises(InvarError, LLM, MODEL, sed=1).value):
        found = pickle.loads(pickle.dumps(error))
        assert isinstance(found, InvarError) and (found.status, str(found)) == (error.status, str(error))


def test_a_missing_library():
    code = "import invar\ntry: invar.LLM('x/y')\nexcept invar.InvarError as e: print(e)\ntry: invar.Policy()\nexcept invar.InvarError as e: print(e)"
    env = {**os.environ, "INVAR_LIBRARY": "/nowhere.so"}
    out = subprocess.run([sys.executable, "-c", code], env=env, text=True, capture_output=True, check=True).stdout
    assert "/nowhere.so" in out.splitlines()[1] and "INVAR_LIBRARY" in out, out
