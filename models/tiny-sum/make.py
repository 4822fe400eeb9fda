#!/usr/bin/env python3
"""Writes the model's configuration and tokenizer, and its problems: every sum of two numbers below 100 once, 500 of them
held out by a seeded shuffle. The weights come from `invar train sft` (README.md)."""
import json
import os
import random

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENS = [str(d) for d in range(10)] + ["+", "="]
END = "<|end|>"
VOCABULARY = 16  # three rows are unused


def write(name, value):
    with open(os.path.join(HERE, name), "w") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def write_lines(name, rows):
    with open(os.path.join(HERE, name), "w") as f:
        for row in rows:
            f.write(json.dumps(row) + "\n")


def main():
    end = len(TOKENS)
    write("config.json", {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCABULARY, "hidden_size": 64,
        "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
        "head_dim": 16, "hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1000.0,
        "tie_word_embeddings": True, "attention_bias": False, "eos_token_id": end, "bos_token_id": None,
        "dtype": "bfloat16"})
    write("generation_config.json", {"eos_token_id": end, "max_new_tokens": 4})
    write("tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": end, "content": END, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True}],
        "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                                              "use_regex": False},
        "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                                            "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(TOKENS)}, "merges": []}})
    write("tokenizer_config.json", {"eos_token": END, "model_max_length": 64, "tokenizer_class": "PreTrainedTokenizerFast"})
    pairs = [(a, b) for a in range(100) for b in range(100)]
    random.Random(20261124).shuffle(pairs)
    held, train = pairs[:500], pairs[500:]
    # sft reads prompt and completion, rl prompt and answer.
    write_lines("problems.jsonl", [{"prompt": f"{a}+{b}=", "completion": str(a + b), "answer": str(a + b)} for a, b in train])
    write_lines("held_out.jsonl", [{"id": f"held-out-{i + 1:03}", "question": f"{a}+{b}=", "answer": a + b}
                                   for i, (a, b) in enumerate(held)])


if __name__ == "__main__":
    main()
