#!/usr/bin/env python3
"""The installed package `invar`, with models/tiny-math and models/tiny-sum: exit code 77 where it is not installed.

    python3 -m venv VENV; VENV/bin/pip install .; VENV/bin/python tests/python/test_invar.py
"""

import asyncio
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

os.environ.setdefault("INVAR_DEVICE", "cpu")
try:
    import invar
except ImportError as error:
    print(f"SKIPPED: the package invar is not installed here ({error})")
    sys.exit(77)

MODELS = pathlib.Path(__file__).resolve().parent.parent.parent / "models"
MATH, SUM = str(MODELS / "tiny-math"), str(MODELS / "tiny-sum")
PROMPTS = [f"Tom has {n} apples and buys {n % 7 + 1} more." for n in range(3, 15)]


def params(**more):
    return invar.SamplingParams(**{"temperature": 1.0, "seed": 7, "max_tokens": 24, "logprobs": 2, **more})


def answers(outputs):
    return [(o.outputs[0].token_ids, o.outputs[0].cumulative_logprob, o.outputs[0].digest) for o in outputs]


class Generation(unittest.TestCase):
    def test_import_is_fast(self):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "import invar"], check=True)
        self.assertLess(time.monotonic() - began, 1.0)  # the interpreter's own start included, on a busy machine

    def test_batch_and_order_change_nothing(self):
        with invar.LLM(model=MATH) as llm, invar.LLM(model=MATH, max_num_seqs=2, enable_prefix_caching=False) as other:
            together = answers(llm.generate(PROMPTS, params(), use_tqdm=False))
            alone = [answers(other.generate([p], params(), use_tqdm=False))[0] for p in PROMPTS]
            turned = answers(llm.generate(PROMPTS[::-1], params(), use_tqdm=False))[::-1]
            self.assertEqual(together, alone)
            self.assertEqual(together, turned)
            another = answers(llm.generate(PROMPTS, params(seed=8), use_tqdm=False))
            self.assertNotEqual(together, another)  # the comparison can fail

    def test_fields(self):
        with invar.LLM(model=MATH) as llm:
            o = llm.chat([{"role": "user", "content": "What is 2 + 2?"}], params(n=2, temperature=0.5), use_tqdm=False)[0]
            self.assertEqual([c.index for c in o.outputs], [0, 1])
            self.assertTrue(o.finished and o.prompt_token_ids)
            for c in o.outputs:
                self.assertIn(c.finish_reason, ("stop", "length"))
                self.assertEqual(len(c.logprobs), len(c.token_ids))
            with self.assertRaises(TypeError):
                invar.SamplingParams(no_such_field=1)

    def test_errors_are_named(self):
        with self.assertRaises(invar.InvarError) as caught:
            invar.LLM(model="/no/such/model")
        self.assertIn("/no/such/model", str(caught.exception))

    def test_async_is_the_same(self):
        async def one(llm, i):
            last = None
            async for last in llm.generate(PROMPTS[i], params(), request_id=str(i)):
                pass
            return last

        async def run():
            llm = invar.AsyncLLM(model=MATH)
            try:
                return await asyncio.gather(*(one(llm, i) for i in range(len(PROMPTS))))
            finally:
                llm.shutdown()

        with invar.LLM(model=MATH) as llm:
            self.assertEqual(answers(asyncio.run(run())), answers(llm.generate(PROMPTS, params(), use_tqdm=False)))


class Training(unittest.TestCase):
    def test_the_learner_is_the_sampler(self):
        options = {"dtype": "bfloat16", "arithmetic": "fma32"}
        with invar.Trainer(SUM, **options, device="cpu") as trainer, invar.LLM(SUM, trainable=True, **options) as llm:
            for _ in range(2):
                trainer.sync(llm)
                outputs = llm.generate(["12+34=", "7+8=", "40+2="], params(max_tokens=4), use_tqdm=False)
                rows = [invar.PolicySequence.from_output(o, advantage=1.0 - i) for i, o in enumerate(outputs)]
                report = trainer.policy_step(invar.Policy("grpo"), rows, 1e-3)
                self.assertGreater(report.tokens, 0)
                self.assertEqual(report.equal, report.tokens)
                self.assertEqual(report.largest_logprob, 0.0)

    def test_weights_are_a_function_of_the_data(self):
        batch = [invar.Sequence([5, 6, 7, 8 + i, 9]) for i in range(6)]
        hashes = set()
        for layout in ({}, {"data_parallel_size": 2}, {"micro_batch": 1, "recompute": "layer"}):
            with invar.Trainer(SUM, device="cpu", arithmetic="fma32", **layout) as t:
                for _ in range(3):
                    t.step(batch, 1e-3)
                hashes.add(t.weights_hash)
        self.assertEqual(len(hashes), 1)

    def test_checkpoints_continue(self):
        batch = [invar.Sequence([5, 6, 7, 8, 9])]
        with tempfile.TemporaryDirectory() as folder, invar.Trainer(SUM, device="cpu") as t:
            t.step(batch, 1e-3)
            t.save(folder, state={"at": 1})
            t.step(batch, 1e-3)
            wanted = t.weights_hash
            with invar.Trainer(SUM, device="cpu") as again:
                self.assertEqual(again.restore(folder), {"at": 1})
                again.step(batch, 1e-3)
                self.assertEqual(again.weights_hash, wanted)


if __name__ == "__main__":
    unittest.main(verbosity=2)
