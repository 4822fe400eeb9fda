"""TRL from its registry, unmodified, with the engine as sampler and learner; the examples that need torch.
INVAR_TEST_LONG=1: 30 steps of TRL instead of 2."""
import os
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

import invar.trl
from datasets import Dataset
from invar import LLM, InvarError, Sequence, Trainer
from support import MODEL, ROOT

STEPS = 30 if os.environ.get("INVAR_TEST_LONG") else 2
GAP = re.compile(r"^step \d+: reward \S+, sampler and learner differ by (\S+), at most (\S+)$", re.M)


def gaps_of(learner):
    """Of each step, as TRL logs them."""
    words = [sys.executable, "examples/trl_grpo.py", MODEL, str(STEPS), learner]
    ran = subprocess.run(words, cwd=ROOT, text=True, capture_output=True)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    found = [(float(mean), float(most)) for mean, most in GAP.findall(ran.stdout)]
    assert len(found) == STEPS
    return found


def test_sampler_and_learner():
    """Equal in every bit, in TRL's own logs; with PyTorch's forward pass, the control, they are not."""
    assert set(gaps_of("invar")) == {(0.0, 0.0)}
    other = gaps_of("torch")
    print(f"{STEPS} steps: with PyTorch's forward pass {sum(g for g, _ in other) / STEPS:.3g}, at most {max(m for _, m in other):.3g}")
    assert min(mean for mean, _ in other) > 0


def trainer_of(kind, folder, **fields):
    config = {"GRPOTrainer": trl.GRPOConfig, "RLOOTrainer": trl.RLOOConfig}[kind]
    args = config(
        output_dir=str(folder), per_device_train_batch_size=8, num_generations=4, max_completion_length=12,
        logging_steps=1, report_to="none", save_strategy="no", use_cpu=True, disable_tqdm=True,
        **{"max_steps": 2, "learning_rate": 1e-4, "bf16": False, "gradient_checkpointing": False,
           "model_init_kwargs": {"dtype": "float32"}, **fields},
    )  # fmt: skip
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": f"What is {i} + {3 * i}?"}]} for i in range(40)])
    return getattr(trl, kind)(MODEL, reward_funcs=lambda completions, **_: [float(len(c[0]["content"])) for c in completions],
                              args=args, train_dataset=data)  # fmt: skip


def test_temperature_and_chats(tmp_path):
    """At a temperature the sampling log-probabilities are compared. The engine's weights are the trainer's afterwards."""
    trainer = trainer_of("GRPOTrainer", tmp_path, temperature=1.7, beta=0.01)
    with LLM(MODEL) as llm:
        rollouts = invar.trl.attach(trainer, llm)
        first = llm.fingerprint
        trainer.train()
        rows = [row for row in trainer.state.log_history if "reward" in row]
        assert len(rows) == 2 and all(row["sampling/sampling_logp_difference/max"] == 0 and row["entropy"] > 0 for row in rows)
        assert all(row["sampling/importance_sampling_ratio/min"] == row["sampling/importance_sampling_ratio/max"] == 1 for row in rows)
        rollouts.sync_weights()
        assert llm.fingerprint != first
        ids = llm.encode("12 + 30 = 42")
        wanted = llm.score({"prompt_token_ids": ids}, use_tqdm=False)[0].logprobs[1:]
        with torch.no_grad():
            assert invar.torch.logprobs(trainer.model, [ids])[1:].tolist() == wanted


def test_reference_model(tmp_path, monkeypatch):
    """Its log-probabilities are the engine's: KL is 0 until a step has rewards that differ, which is not the first here."""
    trainer = trainer_of("GRPOTrainer", tmp_path, beta=0.5, temperature=1.7, learning_rate=1e-3, max_steps=6)
    with LLM(MODEL) as llm:
        invar.trl.attach(trainer, llm)
        inner = trainer._get_per_token_logps_and_entropies
        rows = {}

        def kept(model, ids, mask, *args, **fields):
            found = inner(model, ids, mask, *args, **fields)
            rows[model is trainer.ref_model] = ids, mask, found[0].detach()
            return found

        monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", kept)
        trainer.train()
        ids, mask, values = rows[True]
    kls = [row["kl"] for row in trainer.state.log_history if "kl" in row]
    moved = [row["reward_std"] > 0 for row in trainer.state.log_history if "reward_std" in row]
    first = moved.index(True)  # its KL is still 0, the next one's is not
    assert 0 < first < 5 and not any(kls[: first + 1]) and kls[first + 1] > 0
    with Trainer(MODEL, optimizer=False, pass_tokens=512) as first:  # the reference keeps the first weights
        for row, keep, wanted in zip(ids.tolist(), mask, values):
            a = int(keep.nonzero()[0])
            count = int(keep.sum()) + a - (len(row) - len(wanted))  # completions are padded on the right
            tokens = row[a : int(keep.nonzero()[-1]) + 1]
            scored = first.score([Sequence(tokens)], 1.7, policy=True)[0].tolist()  # over the ids that are drawn
            assert count > 0 and scored[-count:] == wanted[:count].tolist()


@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"top_k": 20}, {"repetition_penalty": 1.1}, {"min_p": 0.1},
                                    {"generation_kwargs": {"presence_penalty": 0.5}}])  # fmt: skip
def test_a_cut_distribution_is_a_warning(tmp_path, fields):
    with LLM(MODEL) as llm, pytest.warns(UserWarning, match=next(iter(fields.get("generation_kwargs", fields)))):
        invar.trl.attach(trainer_of("GRPOTrainer", tmp_path, **fields), llm)


def test_no_warning(tmp_path, recwarn):
    with LLM(MODEL) as llm:
        invar.trl.attach(trainer_of("GRPOTrainer", tmp_path, temperature=0.7), llm)
    assert not [one for one in recwarn if "invar.trl" in str(one.message)]


def test_rloo(tmp_path):
    trainer = trainer_of("RLOOTrainer", tmp_path)
    with LLM(MODEL) as llm:
        invar.trl.attach(trainer, llm)
        trainer.train()
    assert trainer.state.global_step == 2


def test_what_is_refused(tmp_path):
    with LLM(MODEL) as llm:
        for fields, words in (({"gradient_checkpointing": True}, "gradient_checkpointing: wanted False"),
                              ({"entropy_coef": 0.1}, "entropy_coef")):  # fmt: skip
            with pytest.raises(InvarError, match=words):
                invar.trl.attach(trainer_of("GRPOTrainer", tmp_path, **fields), llm)
        trainer = trainer_of("GRPOTrainer", tmp_path)
        rollouts = invar.trl.attach(trainer, llm)
        with pytest.raises(InvarError, match="found images"):
            rollouts.generate([[1]], [["picture"]], 1)
        with pytest.raises(InvarError, match="use_vllm=False"):
            invar.trl.attach(trainer, llm)
        with pytest.raises(InvarError, match="wanted a trainer with rollouts, found no"):
            invar.trl.attach(object(), llm)
        with pytest.raises(InvarError, match="wanted a torch tensor for bfloat16"):
            llm.load_weights([("model.embed_tokens.weight", torch.zeros(2, 2).numpy())])
        first = llm.fingerprint
        with pytest.raises(InvarError, match="norm.weight: wanted by qwen3"):
            llm.load_weights(list(trainer.model.named_parameters())[:-1])
        assert llm.fingerprint == first
