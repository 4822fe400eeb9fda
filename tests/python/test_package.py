"""The installed package: pytest, with INVAR_SOURCE the root of the repository."""
import asyncio
import json
import os
import random
import re
import struct
import subprocess
import sys

import numpy as np
import pytest

import invar
from invar import (
    LLM, AsyncLLM, InvarError, Policy, PolicySequence, Receipt, RequestOutputKind, SamplingParams, Sequence, Status,
    StructuredOutputsParams, Trainer,
)  # fmt: skip
from support import MODEL, ROOT

PROMPTS = [f"What is {i} + {i * i}?" for i in range(12)]


@pytest.fixture(scope="module")
def llm():
    with LLM(MODEL, trainable=True) as engine:
        yield engine


def test_import_time():
    """Processor time, which other programs disturb less; the best of five."""
    code = "import time; t = time.process_time(); import invar; invar.LLM; print(time.process_time() - t)"
    words = [sys.executable, "-c", code]
    times = [float(subprocess.run(words, check=True, text=True, capture_output=True).stdout) for _ in range(5)]
    assert min(times) < 0.2, times


def digests(outputs):
    return [answer.digest for output in outputs for answer in output.outputs]


def test_order_and_batching(llm):
    params = [SamplingParams(seed=i, n=1 + i % 3, max_tokens=40) for i in range(len(PROMPTS))]
    wanted = [digests([output]) for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    order = list(range(len(PROMPTS)))
    random.Random(5).shuffle(order)
    shuffled = llm.generate([PROMPTS[i] for i in order], [params[i] for i in order], use_tqdm=False)
    assert [digests([output]) for output in shuffled] == [wanted[i] for i in order]
    llm.reset_prefix_cache()
    for prompt, p, want in zip(PROMPTS, params, wanted):
        assert digests(llm.generate({"prompt_token_ids": llm.encode(prompt)}, p, use_tqdm=False)) == want


def test_engine_seed_does_not_depend_on_order():
    def seeds_and_digests(outputs):
        return [(output.outputs[0].seed, output.outputs[0].digest) for output in outputs]

    with LLM(MODEL, seed=3) as a, LLM(MODEL, seed=3, max_num_seqs=2) as b:
        forward = seeds_and_digests(a.generate([*PROMPTS, PROMPTS[0]], SamplingParams(), use_tqdm=False))
        backward = seeds_and_digests(b.generate(PROMPTS[::-1], SamplingParams(), use_tqdm=False))
    assert forward[:-1] == backward[::-1]
    assert len({seed for seed, _ in forward}) == len(forward)  # a repeated prompt gets another seed


def test_messages(llm):
    """As the server and the trainer read them (tests/serve/test_doors.c)."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "developer", "content": "D"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "thinking": "why"},
        {"role": "user", "content": "c"},
    ]
    [output] = llm.chat(messages, SamplingParams(max_tokens=1), use_tqdm=False)
    tokenizer = llm.get_tokenizer()
    wanted = "".join(
        f"<|im_start|>{role}\n{text}<|im_end|>\n"
        for role, text in [("system", "D"), ("user", "a\nb"), ("assistant", ""), ("user", "c")]
    )
    assert output.prompt_token_ids == tokenizer.encode(wanted + "<|im_start|>assistant\n")
    shown = "{% for m in messages %}{{ m.thinking or '' }}{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments.x }}{% endif %}"
    shown += "{% endfor %}"
    assert tokenizer.apply_chat_template(messages, chat_template=shown) == "why1"
    with pytest.raises(InvarError, match=r"messages\[3\].weight: this field is not known here"):
        llm.chat([*messages[:3], {"role": "user", "content": "c", "weight": 0}], use_tqdm=False)


def test_parts_of_an_answer(llm):
    talk = [{"role": "user", "content": "What is 17 * 6?"}]
    [output] = llm.chat(talk, SamplingParams(temperature=0, max_tokens=60), use_tqdm=False)
    [answer] = output.outputs
    assert answer.text == f"<think>{answer.reasoning}</think>{answer.content}" and answer.tool_calls == [] and "102" in answer.content
    [output] = llm.generate("17 * 6 =", SamplingParams(max_tokens=2), use_tqdm=False)
    assert output.outputs[0].reasoning is output.outputs[0].content is output.outputs[0].tool_calls is None
    tokenizer = llm.get_tokenizer()
    assert (tokenizer.reasoning_form, tokenizer.tool_form) == ("qwen3", "hermes")
    call = '<think>a</think>b <tool_call>{"name": "f", "arguments": {"x": 1.50}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert tokenizer.parse_answer(call, tools) == ("a", "b", [{"name": "f", "arguments": '{"x": 1.50}'}])
    assert tokenizer.parse_answer("a</think>b", prompt="<think>\n") == ("a", "b", [])


def test_results(llm):
    params = SamplingParams(temperature=0, max_tokens=30, logprobs=2, prompt_logprobs=1, logits=True, stop=["</think>"])
    [output] = llm.chat([{"role": "user", "content": "What is 17 * 6?"}], params, use_tqdm=False)
    [answer] = output.outputs
    assert output.finished and output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(output.prompt_token_ids)
    assert answer.finish_reason == "stop" and answer.stop_reason == "</think>" and "102" in answer.text
    assert answer.cumulative_logprob == sum(answer.token_logprobs)
    for token, value, top, row in zip(answer.token_ids, answer.token_logprobs, answer.logprobs, answer.logits):
        assert next(iter(top)) == token and top[token].rank == 1 and top[token].logprob == value
        assert row.argmax() == token
    [scored] = llm.score({"prompt_token_ids": output.prompt_token_ids}, [answer.token_ids], use_tqdm=False)
    assert scored.logprobs[scored.start :] == answer.token_logprobs
    rows = llm.logits(output.prompt_token_ids + answer.token_ids)
    assert (rows[len(output.prompt_token_ids) - 1 : -1] == answer.logits).all()


def test_receipt(llm):
    [output] = llm.generate("2 + 2 =", SamplingParams(seed=4, max_tokens=20, receipt=True), use_tqdm=False)
    text = output.outputs[0].receipt
    assert llm.replay(text).equal and invar.replay(text, threads=1)
    assert Receipt(text).token_ids == output.outputs[0].token_ids
    with pytest.raises(InvarError) as caught:
        Receipt(text.replace(output.outputs[0].digest, "sha256:" + "0" * 64))
    assert caught.value.status == Status.FORMAT


def test_load_weights():
    """The checkpoint's own tensors from memory, widened; then others."""
    raw = (ROOT / "models/tiny-math/model.safetensors").read_bytes()
    begin = 8 + struct.unpack("<Q", raw[:8])[0]
    wide = {}
    for name, t in json.loads(raw[8:begin]).items():
        if name != "__metadata__":
            bits = np.frombuffer(raw[begin:][slice(*t["data_offsets"])], np.uint16).astype(np.uint32) << 16
            wide[name] = bits.view(np.float32).reshape(t["shape"])
    params = SamplingParams(seed=1, max_tokens=20)
    with LLM(MODEL, dtype="float32", trainable=True) as engine:
        wanted = digests(engine.generate(PROMPTS, params, use_tqdm=False))
        engine.load_weights(wide.items())
        assert digests(engine.generate(PROMPTS, params, use_tqdm=False)) == wanted
        with pytest.raises(InvarError, match="model.norm.weight"):
            engine.load_weights((name, value) for name, value in wide.items() if name != "model.norm.weight")
        assert digests(engine.generate(PROMPTS, params, use_tqdm=False)) == wanted
        engine.load_weights((name, value * np.float32(1.001)) for name, value in wide.items())
        assert digests(engine.generate(PROMPTS, params, use_tqdm=False)) != wanted


def test_structured(llm):
    for form, pattern in (
        (StructuredOutputsParams(regex="[0-9]{3}"), "[0-9]{3}"),
        (StructuredOutputsParams(choice=["yes", "no"]), "yes|no"),
        (StructuredOutputsParams(grammar='root ::= "a" | "b"'), "a|b"),
    ):
        [output] = llm.generate("2 =", SamplingParams(seed=1, structured_outputs=form), use_tqdm=False)
        assert re.fullmatch(pattern, output.outputs[0].text)


def test_errors(llm):
    with pytest.raises(TypeError, match="nonsense"):
        SamplingParams(nonsense=1)
    with pytest.raises(InvarError, match="bad_words") as caught:
        SamplingParams(bad_words=["x"])
    assert caught.value.status == Status.UNSUPPORTED
    with pytest.raises(InvarError, match="top_p"):
        llm.generate(PROMPTS, [SamplingParams(top_p=3.0 if i == 5 else 1.0) for i in range(12)], use_tqdm=False)
    assert llm.stats()["running"] == llm.stats()["waiting"] == 0
    with pytest.raises(InvarError) as caught:
        LLM("/nowhere")
    assert caught.value.status == Status.NOT_FOUND


def test_fork(llm):
    pid = os.fork()
    if pid == 0:
        try:
            llm.generate("2", use_tqdm=False)
        except InvarError as error:
            os._exit(7 if "fork" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_async(llm):
    params = [SamplingParams(seed=i, max_tokens=30, output_kind=list(RequestOutputKind)[i % 3]) for i in range(12)]
    wanted = llm.generate(PROMPTS, params, use_tqdm=False)

    async def one(engine, prompt, p):
        text = ""
        async for output in engine.generate(prompt, p):
            new = output.outputs[0]
            text = text + new.text if p.output_kind == RequestOutputKind.DELTA else new.text
        return text, new.digest

    async def all_of_them():
        with AsyncLLM(MODEL) as engine:
            got = await asyncio.gather(*(one(engine, *item) for item in zip(PROMPTS, params)))
            stream = engine.generate("1", SamplingParams(max_tokens=1500, ignore_eos=True), request_id="long")
            async for output in stream:
                await engine.abort("long")
            assert output.outputs[0].finish_reason == "abort" and len(output.outputs[0].token_ids) < 1500
            return got

    assert asyncio.run(all_of_them()) == [(o.outputs[0].text, o.outputs[0].digest) for o in wanted]


def test_trainer(tmp_path):
    batch = [Sequence([1, 2, 3, 4]), Sequence([5, 6, 7], mask=[0, 0, 1])]
    with LLM(MODEL, trainable=True) as llm, Trainer(MODEL, pass_tokens=512) as a, \
            Trainer(MODEL, pass_tokens=512, micro_batch=1, data_parallel_size=2) as b:  # fmt: skip
        a.step(batch, 1e-4, 1.0)
        b.gradients(batch, 4.0, weigh=lambda i, s: s.coefficients.__setitem__(slice(None), s.mask))
        b.apply(1e-4, 1.0)
        assert a.weights_hash == b.weights_hash
        with pytest.raises(ZeroDivisionError):
            a.gradients(batch, 4.0, weigh=lambda i, s: 1 / 0)
        a.save(tmp_path, state={"cursor": 1})
        a.sync(llm, digest=True)
        outputs = llm.generate(PROMPTS[:2], SamplingParams(n=2, seed=1), use_tqdm=False)
        items = [PolicySequence.from_output(o, i, 1.0 - i) for o in outputs for i in range(2)]
        report = a.policy_step(Policy("grpo"), items, 1e-4)
        assert report.equal == report.tokens > 0 and report.sampler_k3 == 0 and report.largest_logprob == 0
        assert b.restore(tmp_path) == {"cursor": 1}
        assert b.policy_step(Policy("grpo"), items, 1e-4) == report and a.weights_hash == b.weights_hash



def test_trainers_of_adapters(tmp_path):
    batch = [Sequence([3, 1, 4, 1, 5, 9, 2, 6]), Sequence([2, 7, 1, 8])]
    options = {"lora_rank": 4, "lora_alpha": 8, "lora_targets": ["q_proj", "down_proj"], "pass_tokens": 64, "threads": 1}
    llm = LLM(MODEL, device="cpu")
    one, two, alone = Trainer(MODEL, base=llm, **options), Trainer(MODEL, base=llm, lora_seed=1, **options), Trainer(MODEL, **options)
    assert alone.info.memory_bytes > one.info.memory_bytes and alone.fingerprint == one.fingerprint
    assert one.step(batch, 1e-2).weights_hash == alone.step(batch, 1e-2).weights_hash != two.step(batch, 1e-2).weights_hash
    with pytest.raises(InvarError, match="max_loras"):
        one.sync_adapter(llm, "one")  # an engine without room
    with pytest.raises(InvarError, match="sync_adapter"):
        one.sync(llm)
    llm.close()  # its weights stay as long as a trainer reads them
    assert one.step(batch, 1e-2).weights_hash == alone.step(batch, 1e-2).weights_hash
    with pytest.raises(InvarError, match="found a closed one"):
        llm.generate("x")
    digest = one.export(tmp_path / "a", dtype="float32")
    with Trainer(MODEL, lora=tmp_path / "a", pass_tokens=64, threads=1) as further:
        assert further.weights_hash == one.weights_hash and further.export(tmp_path / "b", dtype="float32") == digest
    for trainer in (one, two, alone):
        trainer.close()
    for wrong, text in (({"lora_rank": 2, "lora_targets": "nothing"}, "selects none"), ({"lora_alpha": 2}, "lora_rank"),
                        ({"lora_rank": -1}, "lora_rank"), ({"lora_rank": 2, "base": "x"}, "base")):  # fmt: skip
        with pytest.raises(InvarError, match=text):
            Trainer(MODEL, pass_tokens=64, **wrong)


def test_policy_with_the_kl_in_its_rewards():
    """rloo: reward - kl_beta * sum of (old - reference), minus that of the other answer; without the sequences it cannot."""
    groups, rewards = [0, 0], [1.0, 0.25]
    items = [PolicySequence(Sequence([1, 2, 3], mask=[0, 1, 1]), [0, -0.5, -1.0 - i], reference=[0, -1.5, -2.0])
             for i in range(2)]  # fmt: skip
    for beta in (0.0, 0.1, 2.0):
        shaped = [r - beta * sum(b - f for b, f in zip(s.behavior[1:], s.reference[1:]))
                  for r, s in zip(rewards, items)]  # fmt: skip
        found = Policy("rloo", kl_beta=beta).advantages(groups, rewards, items)
        assert np.allclose(found, [shaped[0] - shaped[1], shaped[1] - shaped[0]], rtol=1e-12, atol=0)
    with pytest.raises(InvarError, match="KL in the reward: wanted the sequences too"):
        Policy("rloo", kl_beta=0.1).advantages(groups, rewards)
    for options, words in (
        ({"algorithm": "reinforce", "eps_high": 0.2}, "eps_high: wanted an algorithm with a clipped ratio"),
        ({"algorithm": "rloo", "kl_beta": 0.1, "kl": "k3"}, "kl: wanted k1 for rloo"),
        ({"algorithm": "grpo", "correction_cap": 2.0}, "correction_cap: wanted correction"),
    ):
        with pytest.raises(InvarError, match=words):
            Policy(**options)
    with pytest.raises(InvarError, match="grpo: wanted groups of at least 2, found group 0 with 1"):
        Policy("grpo").advantages([0, 1], rewards)
