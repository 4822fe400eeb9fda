#!/usr/bin/env python3
"""Writes docs/MODELS.md from the engine's table of model types and the tests' own lists: checkpoints of tests/data, cases of GPUs and
of their learners, digests of an H200, packed models. Usage: models_page.py SOURCE_DIR [--check]
--check: exit code 1 if the page is not what this would write. A type without a row below has no names of checkpoints on the page."""
import json
import pathlib
import re
import sys

# Published checkpoints of the type; calls and reasoning as --tool-call-parser and --reasoning-parser name them (- none of its own: see the
# text); what is refused, or left out.
THINK = "qwen3"
ROWS = {
    "apertus": ("Apertus 8B, 70B", "-", "-", ""),
    "arcee": ("AFM 4.5B", "-", "-", ""),
    "cohere2": ("Command R7B, Command A", "-", "-", ""),
    "cwm": ("CWM 32B", "-", THINK, ""),
    "deepseek_v3": ("DeepSeek V3, V3.1, R1", "deepseek_v3; V3.1: deepseek_v31", "deepseek_r1; V3.1: deepseek_v3", "the MTP layer is passed over"),
    "ernie4_5": ("ERNIE 4.5 0.3B", "ernie45", "ernie45", ""),
    "exaone4": ("EXAONE 4.0 1.2B, 32B", "hermes", THINK, ""),
    "falcon_h1": ("Falcon-H1 0.5B to 34B", "-", "-", ""),
    "gemma2": ("Gemma 2 2B, 9B, 27B", "-", "-", ""),
    "gemma3": ("Gemma 3 4B, 12B, 27B", "pythonic", "-", "images"),
    "gemma3_text": ("Gemma 3 270M, 1B", "pythonic", "-", ""),
    "gemma4": ("Gemma 4 31B, 26B-A4B", "-", "-", "images, sound"),
    "gemma4_text": ("Gemma 4, text alone", "-", "-", ""),
    "glm": ("GLM-4 9B, GLM-Edge", "-", "-", ""),
    "glm4": ("GLM-4 0414 9B, 32B, GLM-Z1", "-", THINK, ""),
    "glm4_moe_lite": ("GLM-4.7-Flash", "glm47", "glm45", "the MTP layer is passed over"),
    "glm4_moe": ("GLM-4.5, 4.5-Air, 4.6, 4.7", "glm45", "glm45", "the MTP layer is passed over"),
    "gpt_oss": ("gpt-oss 20B, 120B", "openai", "openai_gptoss", "browser and python as recipients"),
    "granite": ("Granite 3.0 to 3.3 2B, 8B", "granite", "granite; 3.3: ernie45", ""),
    "granitemoehybrid": ("Granite 4.0 H micro, tiny, small", "hermes", "-", ""),
    "helium": ("Helium 1 2B", "-", "-", ""),
    "hunyuan_v1_dense": ("Hunyuan 0.5B, 1.8B, 4B, 7B", "hunyuan_a13b", "hunyuan_a13b", ""),
    "internvl": ("InternVL 3", "-", "-", "images"),
    "kimi_k2": ("Kimi K2 (with a tokenizer.json)", "kimi_k2", "kimi_k2", ""),
    "kimi_k25": ("Kimi K2.5 (with a tokenizer.json)", "kimi_k2", "kimi_k2", "images"),
    "lfm2": ("LFM2 350M, 700M, 1.2B, 2.6B", "-", "-", ""),
    "lfm2_moe": ("LFM2 8B-A1B", "-", "-", ""),
    "llama": ("Llama 2 to 3.3, SmolLM2, R1-Distill-Llama", "llama3_json", "-; R1: deepseek_r1", ""),
    "llama4": ("Llama 4 Scout, Maverick", "llama4_pythonic, llama4_json", "-", "images"),
    "llama4_text": ("Llama 4 Scout, Maverick, text alone", "llama4_pythonic, llama4_json", "-", ""),
    "mellum": ("", "-", "-", "the MTP layer is passed over"),
    "minimax_m2": ("MiniMax-M2", "minimax_m2", "minimax_m2", ""),
    "ministral": ("Ministral 8B 2410", "mistral", "-", ""),
    "ministral3": ("Ministral 3 3B, 8B, 14B, text alone", "mistral", "mistral", ""),
    "mistral": ("Mistral 7B, Nemo 12B, Small 24B, Magistral", "mistral", "-; Magistral: mistral", ""),
    "mistral3": ("Mistral Small 3.1, 3.2, 4; Ministral 3", "mistral", "mistral", "images"),
    "mistral4": ("Mistral Small 4 119B, text alone", "mistral", "mistral", ""),
    "mixtral": ("Mixtral 8x7B, 8x22B", "mistral", "-", ""),
    "muse_glimmer": ("Muse Glimmer 30B", "-", "-", "images"),
    "muse_glimmer_text": ("Muse Glimmer 30B, text alone", "-", "-", ""),
    "nemotron_h": ("Nemotron-H, Nemotron Nano 2, Nemotron 3 Nano", "-; Nemotron 3: qwen3_coder", THINK, "the MTP layers are passed over"),
    "olmo2": ("OLMo 2 1B, 7B, 13B, 32B", "-", "-", ""),
    "olmo3": ("Olmo 3 7B, 32B", "olmo3", "olmo3", ""),
    "phi3": ("Phi 3, 3.5 (mini, medium), 4, 4 mini", "phi4_mini_json", "-; Phi 4 reasoning: qwen3", ""),
    "qwen2": ("Qwen2, Qwen2.5, R1-Distill-Qwen, QwQ", "hermes", "-; R1, QwQ: deepseek_r1", ""),
    "qwen2_5_vl": ("Qwen2.5-VL 3B to 72B", "hermes", "-", "images"),
    "qwen2_moe": ("Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B", "hermes", "-", ""),
    "qwen2_vl": ("Qwen2-VL 2B to 72B", "hermes", "-", "images"),
    "qwen3": ("Qwen3 0.6B to 32B", "hermes", THINK, ""),
    "qwen3_5": ("Qwen3.5", "qwen3_coder", THINK, "images"),
    "qwen3_5_moe": ("Qwen3.5 MoE", "qwen3_coder", THINK, "images"),
    "qwen3_5_text": ("Qwen3.5, text alone", "qwen3_coder", THINK, ""),
    "qwen3_moe": ("Qwen3 30B-A3B, 235B-A22B; Qwen3-Coder", "hermes; Coder: qwen3_coder", THINK, ""),
    "qwen3_next": ("Qwen3-Next 80B-A3B", "hermes", THINK, ""),
    "qwen3_vl": ("Qwen3-VL 2B to 32B", "hermes", THINK, "images"),
    "qwen3_vl_moe": ("Qwen3-VL 30B-A3B, 235B-A22B", "hermes", THINK, "images"),
    "seed_oss": ("Seed-OSS 36B", "seed_oss", "seed_oss", ""),
    "smollm3": ("SmolLM3 3B", "hermes", THINK, ""),
}

TEXT = """# Models

What is opened, and what was tried of it. `tests/scripts/models_page.py` writes this page from the engine's table of model types and the tests'
lists; `rooms_models` checks that it is current.

- *logits*: of a tiny checkpoint of the type with random weights, in float32 and bfloat16, against a float64 reference; with them greedy ids, the
  export, dummy weights, and `invar verify` over every axis, with 1 to 8 ranks where heads allow. *golden*: recorded digests (`tests/model`).
- *GPU*: an emulated GPU gives the CPU's `tc16` bits; *H200*: so did one. *-*: not compared yet. What a GPU lacks for a type it refuses by name.
- *learner*: gradients against a float64 reference on a CPU; *GPU*: a learner on an emulated GPU was compared with it.
- *calls*, *reasoning*: the [forms](SERVER.md#tool-calls) of its checkpoints, as the flags name them; a server takes them from the chat template.
  *-*: the template's, as a rule `hermes` and `<think>`, or none.

| model type | checkpoints | tried | GPU | learner | calls | reasoning | refused, left out |
|---|---|---|---|---|---|---|---|
"""

REST = """
Text alone is read of the types whose checkpoints have towers: a request with an image or sound is refused by name. `is_causal: false`, and other
[members that would change the arithmetic](formats/config.md#members-that-are-not-implemented), are refused by name for every type. Forms of files are in
[tensors.md](formats/tensors.md), defaults of each type in [config.md](formats/config.md).

## Formats

bfloat16 and float32 of every type, float16 too where digests are recorded; packed weights of every type whose tensors have the names of a format's files.

| format | tried with |
|---|---|
"""

END = """
Every format of [quantization.md](formats/quantization.md) and [gguf.md](formats/gguf.md) is tested bit for bit against its oracle, without a model.
On a CPU packed weights [stay packed](formats/quantization.md#in-memory) in memory; GPUs and engines that learn hold them expanded.
"""

FORMATS = (
    ("FP8 blocks of 128 x 128 (`fp8`)", "qwen3_fp8_a", "Qwen3: float64, verify, export"),
    ("FP8 by row (compressed-tensors)", None, "Qwen3: float64"),
    ("INT8 by row (compressed-tensors)", "llama_w8a8_int8_a", "Llama: float64, export"),
    ("MXFP4", None, "gpt-oss: float64, verify"),
    ("GGUF Q4_0, with Q5_0, Q5_1, Q8_0", "gguf_qwen3_q4_0_a", "Qwen3: float64, export"),
    ("GGUF Q8_0", "gguf_llama_q8_0_a", "Llama: float64, verify, export"),
    ("GGUF Q4_1", None, "SmolLM2-135M-Instruct (`./run demo smollm2`): ids as transformers, answers, export"),
    ("GGUF Q4_K, Q6_K", None, "Gemma 3 270M (`./run get gemma3`): texts as transformers"),
    ("GGUF BF16", None, "Llama 3.1, Mixtral, Qwen2, Qwen3, Qwen3-MoE, Gemma 3: logits of the Hugging Face form, bit for bit"),
)


def type_of(folder):
    return json.loads((folder / "config.json").read_text())["model_type"]


def read(path, pattern):
    found = re.findall(pattern, path.read_text(), re.M)
    if not found:
        raise SystemExit(f"{path}: wanted {pattern}, found none")
    return found


def facts(root):
    """{model type: sets of what was tried}"""
    tests = root / "tests"
    texts = read(root / "src/format/config_wrapper.c", r'^    \{"(\w+)", "(\w+)",')
    inner = {text for _, text in texts}
    table = (root / "src/format/config_families.c").read_text().split("static const iv_family_facts families[] = {")[1].split("\n};")[0]
    types = {name for name in re.findall(r'^    \{"(\w+)",', table, re.M)}
    types |= {wrapper for wrapper, _ in texts}
    out = {name: {"tried": [], "gpu": [], "learner": []} for name in types}
    for folder in sorted((tests / "data/families").iterdir()):
        row = out[type_of(folder)]
        row["tried"] = ["logits"]
        if (folder / "gradients.safetensors").exists():
            row["learner"] = ["CPU"]
    for folder in sorted((tests / "data/hf").iterdir()):
        row = out[type_of(folder)]
        row["tried"] = ["golden"] + row["tried"]
        if (tests / "data/gradients" / folder.name).exists():
            row["learner"] = ["CPU"]
    known = (tests / "data/h200_digests.txt").read_text()
    waiting = re.search(r"^# From (\S+) on: .*; no H200 has given them yet", known, re.M)
    if waiting:  # the CPU's alone
        known = known[: known.index(f"\n{waiting[1]} ")]
    recorded = set(re.findall(r"^(\S+) [0-9a-f]{64}$", known, re.M))
    case = r'^    \{"([\w-]+)", "(tests/data/(?:families|hf)/\w+)",'
    for emulated in ("device", "states"): # models in a case of the test, one level deeper
        for _, folder in read(tests / f"cuda/test_emulated_{emulated}.c", case.replace("^    ", "^        ")):
            out[type_of(root / folder)]["gpu"] = ["GPU"]
    for name, folder in read(tests / "cuda/device_cases.h", case):
        out[type_of(root / folder)]["gpu"] = ["GPU", "H200"] if name in recorded else ["GPU"]
    for _, folder in read(tests / "cuda/learner_cases.h", case):
        out[type_of(root / folder)]["learner"] = ["CPU", "GPU"]
    # The text part of a wrapper is opened by itself, too; it has a row if it was tried so.
    return {name: row for name, row in out.items() if row["tried"] or name not in inner}


def cell(items):
    return ", ".join(items) or "-"


def page(root):
    lines = []
    for name, row in sorted(facts(root).items()):
        checkpoints, calls, reasoning, refused = ROWS.get(name, ("", "-", "-", ""))
        columns = [f"`{name}`", checkpoints, cell(row["tried"]), cell(row["gpu"]), cell(row["learner"]), calls, reasoning, refused]
        lines.append("| " + " | ".join(columns).replace("|  |", "| |").replace("|  |", "| |") + " |")
    packed = {folder.name for folder in (root / "tests/data/packed_models").iterdir()}
    formats = [f"| {name} | {tried} |" for name, folder, tried in FORMATS if folder is None or folder in packed]
    text = TEXT + "\n".join(lines) + "\n" + REST + "\n".join(formats) + "\n" + END
    return re.sub(r" +\|\n", " |\n", text)


def main():
    root, check = pathlib.Path(sys.argv[1]), sys.argv[2:] == ["--check"]
    path, text = root / "docs/MODELS.md", page(root)
    if not check:
        path.write_text(text)
    elif path.read_text() != text:
        raise SystemExit("docs/MODELS.md is not what the tests' lists give: run tests/scripts/models_page.py .")


main()
