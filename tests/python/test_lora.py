"""Adapters in LLM and AsyncLLM, as vLLM has them: the bits of the program, whatever else is in a call."""
import asyncio
import json
import subprocess
import sys

import pytest
from support import MODEL, PROGRAM, ROOT

sys.path.insert(0, str(ROOT / "tests/clients"))
from adapters import make_adapter

from invar import LLM, AsyncLLM, InvarError, LoRARequest, SamplingParams, Status, Trainer
from invar.lora.request import LoRARequest as SameClass

PROMPT, GREEDY = "What is 17 * 6?", SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    return [make_adapter(folder / str(i), MODEL, i, size=0.3) for i in range(3)]


@pytest.fixture(scope="module")
def llm():
    with LLM(MODEL, device="cpu", enable_lora=True, max_loras=2, max_lora_rank=8) as llm:
        yield llm


def of_program(folder):
    words = [PROGRAM, "generate", MODEL, "-p", PROMPT, "--temperature", "0", "--max-tokens", "16", "--ignore-eos", "--json", "--quiet"]
    ran = subprocess.run([*words, "--device", "cpu", *(["--lora", folder] if folder else [])], capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)["digest"]


def digests(outputs):
    return [o.outputs[0].digest for o in outputs]


def test_bits(llm, folders):
    """A list of one request a prompt; more adapters than max_loras take turns."""
    assert SameClass is LoRARequest
    want = [of_program(f) for f in [None, *folders]]
    assert len(set(want)) == 4
    loras = [None, *[LoRARequest(f"a{i}", i + 1, f) for i, f in enumerate(folders)]]
    for one, digest in zip(loras, want):
        [out] = llm.generate(PROMPT, GREEDY, lora_request=one, use_tqdm=False)
        assert out.outputs[0].digest == digest and out.lora_request is one
        assert ("+lora-" in out.fingerprint) == (one is not None)
    order = [2, 0, 1, 3, 3, 1, 0, 2] * 4
    outputs = llm.generate([PROMPT] * len(order), GREEDY, lora_request=[loras[i] for i in order], use_tqdm=False)
    assert digests(outputs) == [want[i] for i in order]
    assert len(llm.list_loras()) == 2


def test_chat_score_logits(llm, folders):
    lora, talk = LoRARequest("a0", 1, folders[0]), [{"role": "user", "content": PROMPT}]
    both = llm.chat([talk, talk], GREEDY, lora_request=[None, lora], use_tqdm=False)
    assert digests(both)[0] != digests(both)[1]
    assert digests(llm.chat(talk, GREEDY, lora_request=lora, use_tqdm=False)) == digests(both)[1:]
    base, adapted = llm.score([PROMPT, PROMPT], lora_request=[None, lora], use_tqdm=False)
    assert base.logprobs != adapted.logprobs and "+lora-" in adapted.fingerprint and "+lora-" not in base.fingerprint
    rows = llm.logits(PROMPT, lora_request=lora)
    assert rows.tobytes() != llm.logits(PROMPT).tobytes()


def test_names(llm, folders):
    first = LoRARequest("named", 9, folders[0])
    assert llm.add_lora(first) and not llm.add_lora(first) and 9 in llm.list_loras()
    for wrong in (LoRARequest("named", 9, folders[1]), LoRARequest("named", 10, folders[0])):
        with pytest.raises(InvarError, match="load_inplace") as e:
            llm.generate(PROMPT, GREEDY, lora_request=wrong, use_tqdm=False)
        assert e.value.status == Status.INVALID
    with pytest.raises(InvarError, match="lora_int_id of its own"):
        llm.add_lora(LoRARequest("other", 9, folders[0]))
    before = digests(llm.generate(PROMPT, GREEDY, lora_request=first, use_tqdm=False))
    other = LoRARequest("named", 9, folders[1], load_inplace=True)
    assert digests(llm.generate(PROMPT, GREEDY, lora_request=other, use_tqdm=False)) == [of_program(folders[1])] != before
    assert llm.remove_lora(9) and not llm.remove_lora(9) and 9 not in llm.list_loras()


def test_learned(folders):
    """A trainer's adapter next to one from files: each has its name, and its bits are those of its export."""
    with LLM(MODEL, device="cpu", enable_lora=True, max_loras=2) as llm, Trainer(MODEL, device="cpu", lora_rank=4, base=llm) as trainer:
        files = LoRARequest("files", 1, folders[0])
        before = digests(llm.generate(PROMPT, GREEDY, lora_request=files, use_tqdm=False))
        digest = trainer.sync_adapter(llm, "learned")
        [out] = llm.generate(PROMPT, GREEDY, lora_request=LoRARequest("learned", 2), use_tqdm=False)
        assert out.fingerprint.endswith(f"+lora-{digest[:16]}")
        others = [LoRARequest(f"b{i}", 10 + i, folders[i]) for i in (1, 2)]
        assert len(set(digests(llm.generate([PROMPT] * 2, GREEDY, lora_request=others, use_tqdm=False)))) == 2
        assert digests(llm.generate([PROMPT] * 2, GREEDY, lora_request=[files, LoRARequest("learned", 2)], use_tqdm=False)) == [
            *before, out.outputs[0].digest]
        trainer.sync_adapter(llm, "files")
        [now] = llm.generate(PROMPT, GREEDY, lora_request=LoRARequest("files", 1), use_tqdm=False)
        assert now.outputs[0].digest == out.outputs[0].digest
        assert digests(llm.generate(PROMPT, GREEDY, lora_request=files, use_tqdm=False)) == before


def test_refused(llm, folders):
    lora = LoRARequest("a0", 1, folders[0])
    for given, want in (([lora, lora], "wanted 1, found 2"), ("a0", "lora_request"), ([3], r"lora_request\[0\]")):
        with pytest.raises(InvarError, match=want):
            llm.generate([PROMPT], GREEDY, lora_request=given, use_tqdm=False)
    with pytest.raises(InvarError) as e:
        llm.generate(PROMPT, GREEDY, lora_request=LoRARequest("none", 7, "/nowhere"), use_tqdm=False)
    assert e.value.status == Status.NOT_FOUND and "/nowhere" in str(e.value)
    for fields, want in ((("", 1, "x"), "lora_name"), (("a", 0, "x"), "lora_int_id"), (("a", 1, 7), "lora_path")):
        with pytest.raises(InvarError, match=want):
            LoRARequest(*fields)
    with pytest.raises(InvarError, match="found neither"):
        llm.generate(PROMPT, GREEDY, lora_request=LoRARequest("nobody", 7), use_tqdm=False)
    with LLM(MODEL, device="cpu") as plain, pytest.raises(InvarError, match="enable_lora=True"):
        plain.generate(PROMPT, GREEDY, lora_request=lora, use_tqdm=False)
    with LLM(MODEL, device="cpu", enable_lora=True, max_lora_rank=1) as small, pytest.raises(InvarError, match="max_lora_rank"):
        small.generate(PROMPT, GREEDY, lora_request=lora, use_tqdm=False)
    with pytest.raises(InvarError, match="max_loras"):
        LLM(MODEL, enable_lora=True, max_loras=0)


def test_async(folders):
    want = [of_program(f) for f in [None, *folders]]

    async def answer(llm, lora):
        async for out in llm.generate(PROMPT, GREEDY, lora_request=lora):
            pass
        return out.outputs[0].digest

    async def run():
        with AsyncLLM(MODEL, device="cpu", enable_lora=True, max_loras=1) as llm:
            loras = [None, *[LoRARequest(f"a{i}", i + 1, f) for i, f in enumerate(folders)]]
            order = [0, 1, 2, 3] * 6
            found = await asyncio.gather(*[answer(llm, loras[i]) for i in order])
            assert found == [want[i] for i in order]
            assert await llm.add_lora(LoRARequest("b", 9, folders[0])) and await llm.list_loras() == {9}
            assert await llm.remove_lora(9) and await llm.list_loras() == set()
            with pytest.raises(InvarError):
                await answer(llm, LoRARequest("none", 7, "/nowhere"))
            async for out in llm.chat([{"role": "user", "content": PROMPT}], GREEDY, lora_request=loras[1]):
                pass
            assert "+lora-" in out.fingerprint
            assert await llm.remove_lora(1)  # a trainer's adapter needs a place of its own
            with Trainer(MODEL, device="cpu", lora_rank=4) as trainer:
                digest = await llm.sync_adapter(trainer, "learned")
            async for out in llm.generate(PROMPT, GREEDY, lora_request=LoRARequest("learned", 11)):
                pass
            assert out.fingerprint.endswith(f"+lora-{digest[:16]}")

    asyncio.run(run())
