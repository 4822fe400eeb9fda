#!/usr/bin/env python3
"""figures.py: draws the pictures of docs/ from the records of this folder's benchmarks.

    python3 bench/gpu/figures.py --out docs RECORDS.jsonl ...

A record is a JSON object on a line; "bench" is its kind, "method" the implementation (METHODS). Later records replace
earlier ones of the same point, so the files of several runs can be given together. A picture is drawn if it has records;
missing ones are reported:

    gpu_linear.svg     the paper's Figure 8: {"bench": "linear", "shape": "figure8", "type", "m", "tflops"}
    gpu_latency.svg    Figure 9: {"bench": "latency", "model", "input", "output", "batch", "gpus", "seconds"}, of the
                       largest number of GPUs
    gpu_allreduce.svg  Figure 11: {"bench": "allreduce", "gpus", "m", "hidden", "us"}
    gpu_components.svg Figure 12: {"bench": "component", "component", "ms"}
    gpu_layers.svg     layers of Qwen3-8B: {"bench": "linear", "shape", "m", "us"}
    gpu_attention.svg  {"bench": "attention", "what": "prefill" or "decode", "batch", "context", "dim", "us"}
    gpu_model.svg      steps of Qwen3-8B: {"bench": "model", "model", "what", "batch", "rows", "context", "gpus", "ms"}
    gpu_models.svg     the same for all other models
    gpu_serve.svg      throughput over HTTP: {"bench": "serve", "model", "gpus", "streams", "tokens_per_s"}

Plain Python, without dependencies.
"""

import argparse
import json
import os
import sys

from svg import Chart, Panel

# In drawing order; methods of one color never share a picture.
METHODS = {"cublas": ("cuBLAS", 1), "nccl": ("NCCL", 1), "cudnn": ("cuDNN", 1), "vanilla": ("vanilla", 1),
           "vanilla-blas": ("vanilla (cuBLAS)", 1),
           "bio": ("BIO", 4), "tbik": ("TBIK", 3), "flash": ("flash", 4), "torch plain": ("PyTorch", 5),
           "torch compiled": ("PyTorch, compiled", 3), "engine alone": ("engine alone", 5),
           "over HTTP": ("over HTTP", 0), "invar": ("invar", 0),
           "decode": ("decode", 2), "prefill": ("prefill", 3), "mixed": ("mixed", 5)}
NAMES = {method: name for method, (name, _) in METHODS.items()}
COLOURS = {method: colour for method, (_, colour) in METHODS.items()}
TYPE_NOTES = {"float32": "float32 (BIO, TBIK: TF32)"}


def read(paths):
    """All records, and their machines."""
    records, machines = [], []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                    (machines if record["bench"] == "machine" else records).append(record)
                except (ValueError, KeyError, TypeError) as problem:
                    sys.exit(f"figures.py: {path}: line {number}: no record: {problem}")
    return records, machines


def methods_of(records):
    found = dict.fromkeys(r["method"] for r in records)
    return [m for m in METHODS if m in found] + [m for m in found if m not in METHODS]


def gather(records, key, value):
    """{method: {key(record): value}}; later records replace earlier ones."""
    return {method: {key(r): r[value] for r in records if r["method"] == method} for method in methods_of(records)}


def lines(records, x, y):
    return {method: sorted(points.items()) for method, points in gather(records, lambda r: r[x], y).items()}


def gpus_of(count):
    return f"{count} GPU" + "s" * (count != 1)


def distinct(records, field):
    return list(dict.fromkeys(r[field] for r in records))


def linear(records):
    chosen = [r for r in records if r["bench"] == "linear" and r["shape"] == "figure8"]
    panels = [Panel(TYPE_NOTES.get(t, t), "TFLOP/s", lines([r for r in chosen if r["type"] == t], "m", "tflops"),
                    x_name="tokens (M)") for t in distinct(chosen, "type")]
    return "Matrix product, K = 6144, N = 2048", panels


def layers(records):
    chosen = [r for r in records if r["bench"] == "linear" and r["shape"] != "figure8" and r["type"] == "bfloat16"]
    panels = []
    for shape in distinct(chosen, "shape"):
        of_shape = [r for r in chosen if r["shape"] == shape]
        title = f"{shape}, {of_shape[0]['k']} to {of_shape[0]['n']}"
        panels.append(Panel(title, "us", lines(of_shape, "m", "us"), x_name="tokens", log_y=True))
    return "Linear layers of Qwen3-8B, bfloat16", panels


def latency(records):
    chosen = [r for r in records if r["bench"] == "latency"]
    if chosen:  # one model, one number of GPUs, one batch: the largest
        most = max((r["gpus"], r["batch"], r["model"]) for r in chosen)
        chosen = [r for r in chosen if (r["gpus"], r["batch"], r["model"]) == most]
    panels = []
    for output in sorted(set(distinct(chosen, "output"))):
        of_output = sorted((r for r in chosen if r["output"] == output), key=lambda r: r["input"])
        panels.append(Panel(f"{output} tokens written", "s", gather(of_output, lambda r: str(r["input"]), "seconds"),
                            kind="bars", x_name="tokens read"))
    first = chosen[0] if chosen else {}
    return f"Latency of {first.get('model')}, {gpus_of(first.get('gpus'))}, {first.get('batch')} sequences at once", panels


def allreduce(records):
    chosen = [r for r in records if r["bench"] == "allreduce"]
    panels = [Panel(f"{g} GPUs", "us", lines([r for r in chosen if r["gpus"] == g], "m", "us"), x_name="tokens (M)",
                    log_y=True) for g in sorted(set(distinct(chosen, "gpus")))]
    return f"All-reduce of M x {chosen[0]['hidden'] if chosen else '?'}, bfloat16", panels


def components(records):
    chosen = [r for r in records if r["bench"] == "component"]
    panels = []
    for step in dict.fromkeys(r.get("step", "") for r in chosen):
        of_step = [r for r in chosen if r.get("step", "") == step]
        for r in of_step:
            r["group"] = r["component"].replace(" ", "\n")
        panels.append(Panel(step, "ms", gather(of_step, lambda r: r["group"], "ms"), kind="bars",
                            groups=distinct(of_step, "group")))
    return "What the parts of a step cost", panels


def attention(records):
    chosen = [r for r in records if r["bench"] == "attention" and r.get("dim", 128) == 128]
    panels = []
    for what, batch in dict.fromkeys((r["what"], r["batch"]) for r in chosen):
        of_panel = [r for r in chosen if (r["what"], r["batch"]) == (what, batch)]
        if len(set(distinct(of_panel, "context"))) == 1:
            continue  # no line
        panels.append(Panel(f"{what}, batch {batch}", "us", lines(of_panel, "context", "us"), x_name="context",
                            log_y=True))
    return "Attention, 32 query and 8 KV heads of 128", panels


def model(records):
    return "Steps of Qwen3-8B", step_panels(records, lambda name: name == "qwen3-8b")


def models(records):
    return "Steps of other models", step_panels(records, lambda name: name != "qwen3-8b")


def rows(records):
    """Time of a step by its rows, and ours as a multiple of vanilla's."""
    chosen = [r for r in records if r["bench"] == "model" and r["what"] in ("decode", "mixed", "prefill")]
    panels, ratio = [], {}
    for name in ("decode", "prefill", "mixed"):
        of_kind = sorted((r for r in chosen if r["what"] == name), key=step_rows)
        if not of_kind:
            continue
        ms = gather(of_kind, step_rows, "ms")
        panels.append(Panel(name, "ms a step", {m: sorted(v.items()) for m, v in ms.items()}, x_name="rows", log_y=True))
        peer = next((ms[m] for m in ("vanilla-blas", "vanilla") if m in ms), {})
        ratio[name] = sorted((n, t / peer[n]) for n, t in ms.get("invar", {}).items() if n in peer)
    if any(ratio.values()):
        panels.append(Panel("invar's time / vanilla's", "", ratio, x_name="rows"))
    return "Steps by number of rows", panels


def step_rows(record):
    return record["batch"] if record["what"] == "decode" else record["rows"]


def step_panels(records, wanted):
    chosen, panels = [r for r in records if r["bench"] == "model" and wanted(r["model"])], []
    for name, gpus in sorted(set((r["model"], r["gpus"]) for r in chosen)):
        for what in ("decode", "prefill"):
            of_panel = [r for r in chosen if (r["model"], r["gpus"], r["what"]) == (name, gpus, what)]
            of_panel.sort(key=lambda r: (r["batch"], r["rows"]))
            if of_panel:
                title = f"{name}, {gpus_of(gpus)}, {what}"
                key = (lambda r: f"batch {r['batch']}") if what == "decode" else (lambda r: f"{r['rows']} tokens")
                panels.append(Panel(title, "ms a step", gather(of_panel, key, "ms"), kind="bars"))
    return panels


def serve(records):
    chosen = [r for r in records if r["bench"] == "serve"]
    panels = []
    for name in distinct(chosen, "model"):
        of_name = sorted((r for r in chosen if r["model"] == name), key=lambda r: r["gpus"])
        panels.append(Panel(f"{name}, {of_name[0]['streams']} streams", "tokens/s",
                            gather(of_name, lambda r: gpus_of(r["gpus"]), "tokens_per_s"), kind="bars"))
    return "Throughput of the engine, and through its server", panels


PICTURES = {"gpu_linear": linear, "gpu_latency": latency, "gpu_allreduce": allreduce, "gpu_components": components,
            "gpu_layers": layers, "gpu_attention": attention, "gpu_model": model, "gpu_models": models,
            "gpu_serve": serve, "gpu_rows": rows}
NOT_OURS = {"gpu_serve"}  # pictures without a method called invar


def subtitle_of(machines):
    if not machines:
        return "machine unknown"
    last = machines[-1]
    return f"{last['gpu']}, driver {last['driver'].split(',')[0]}, PyTorch {last['torch']}, {last['utc'][:10]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", help="JSON records, one a line")
    parser.add_argument("--out", required=True, help="folder for the pictures")
    parser.add_argument("--only", help="names, with commas between: " + ", ".join(PICTURES))
    options = parser.parse_args()
    records, machines = read(options.records)
    for name in options.only.split(",") if options.only else PICTURES:
        if name not in PICTURES:
            sys.exit(f"figures.py: no picture '{name}'; there are {', '.join(PICTURES)}")
        title, panels = PICTURES[name](records)
        if not panels:
            print(f"{name}: no records")
            continue
        lacks = name not in NOT_OURS and not any("invar" in panel.series for panel in panels)
        chart = Chart(title, subtitle_of(machines), panels, COLOURS, NAMES)
        path = os.path.join(options.out, name + ".svg")
        with open(path, "w", encoding="utf-8") as file:
            file.write(chart.document())
        print(path + (" (without invar: no record)" if lacks else ""))


if __name__ == "__main__":
    main()
