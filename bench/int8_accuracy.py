#!/usr/bin/env python3
"""int8_accuracy.py MODEL TEXTS [--invar build/invar] [--texts 24]: what int8 arithmetic costs, next to 8-bit weights alone.

A Markdown table: over all tokens of the texts the mean Kullback-Leibler divergence of the next token's distribution from
float32's, in nats, and how often the likeliest token is the same. TEXTS: JSON lines with "text", or with "question" or
"prompt", to which the model's own greedy answer (at most 200 tokens) is added. FP8 (e4m3, a scale an output) and Q8_0 (float16 scales of 32) are weights alone, with
float32 activations. Needs numpy.
"""
import argparse
import json
import os
import shutil
import struct
import subprocess
import tempfile

import numpy as np

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def read_safetensors(path):
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    out = {}
    for name, t in head.items():
        if name == "__metadata__":
            continue
        raw = data[t["data_offsets"][0] : t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            x = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            x = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2", "I32": "<i4"}[t["dtype"]])
        out[name] = x.reshape(t["shape"])
    return out


def write_safetensors(path, tensors):
    head, at = {}, 0
    for name, x in tensors.items():
        head[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + 4 * x.size]}
        at += 4 * x.size
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            f.write(np.ascontiguousarray(x, "<f4").tobytes())


def q8_0(w):
    blocks = w.astype(np.float32).reshape(-1, 32)
    d = (np.abs(blocks).max(1, keepdims=True) / np.float32(127)).astype(np.float32)
    inverse = np.divide(1, d, out=np.zeros_like(d), where=d != 0)
    return (np.rint(blocks * inverse) * d.astype(np.float16).astype(np.float32)).reshape(w.shape)


def e4m3(w):
    s = np.abs(w).max(1, keepdims=True) / np.float32(448)
    x = np.divide(w, s, out=np.zeros_like(w), where=s != 0)
    step = np.exp2(np.maximum(np.floor(np.log2(np.maximum(np.abs(x), 2.0**-30))), -6) - 3)
    return (np.rint(x / step) * step * s).astype(np.float32)


def copy_with(model, folder, change):
    for name in os.listdir(model):
        if name.endswith(".json") and "index" not in name and "oracle" not in name:
            shutil.copy(os.path.join(model, name), folder)
    tensors = read_safetensors(os.path.join(model, "model.safetensors"))
    for name, x in tensors.items():
        if any(name.endswith(layer + ".weight") for layer in LAYERS):
            tensors[name] = change(x)
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    return folder


def texts_of(args):
    lines = [json.loads(line) for line in open(args.file)][: args.texts]
    if "text" in lines[0]:
        return [line["text"] for line in lines]
    out = []
    for line in lines:
        chat = "question" in line
        prompt = line["question"] if chat else line["prompt"]
        run = [args.invar, "generate", args.model, *["--chat"] * chat, "-p", prompt, "--temperature", "0", "--max-tokens", "200", "--json", "--dtype", "float32"]
        answer = json.loads(subprocess.run(run, capture_output=True, check=True).stdout)["text"]
        out.append("<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n%s" % (prompt, answer) if chat else prompt + answer)
    return out


def logits(args, folder, model, text, flags):
    out = os.path.join(folder, "logits.safetensors")
    subprocess.run([args.invar, "logits", model, "--text", text, "--out", out, *flags], capture_output=True, check=True)
    x = read_safetensors(out)["logits"].astype(np.float64)
    return x - x.max(1, keepdims=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model"), parser.add_argument("file")
    parser.add_argument("--invar", default="build/invar"), parser.add_argument("--texts", type=int, default=24)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        q8, fp8 = (os.path.join(folder, name) for name in ("q8", "fp8"))
        os.mkdir(q8), os.mkdir(fp8)
        exact = ["--dtype", "float32"]
        ways = [("bfloat16", args.model, ["--dtype", "bfloat16"]), ("`i8`", args.model, ["--arithmetic", "i8", *exact]),
                ("`i8x2`", args.model, ["--arithmetic", "i8x2", *exact]),
                ("`i8`, bfloat16", args.model, ["--arithmetic", "i8", "--dtype", "bfloat16"]),
                ("`i8x2`, bfloat16", args.model, ["--arithmetic", "i8x2", "--dtype", "bfloat16"]),
                ("FP8 weights alone", copy_with(args.model, fp8, e4m3), exact),
                ("Q8_0 weights alone", copy_with(args.model, q8, q8_0), exact)]
        kl, same, tokens = [0.0] * len(ways), [0] * len(ways), 0
        for text in texts_of(args):
            want = logits(args, folder, args.model, text, exact)
            p = np.exp(want) / np.exp(want).sum(1, keepdims=True)
            logp = want - np.log(np.exp(want).sum(1, keepdims=True))
            tokens += len(want)
            for i, (_, model, flags) in enumerate(ways):
                got = logits(args, folder, model, text, flags)
                kl[i] += (p * (logp - got + np.log(np.exp(got).sum(1, keepdims=True)))).sum()
                same[i] += int((want.argmax(1) == got.argmax(1)).sum())
    print("| %s, %d tokens | KL to float32 | same token |\n|---|---|---|" % (os.path.basename(args.model.rstrip("/")), tokens))
    for i, (name, _, _) in enumerate(ways):
        print("| %s | %.2g | %.3f |" % (name, kl[i] / tokens, same[i] / tokens))


if __name__ == "__main__":
    main()
