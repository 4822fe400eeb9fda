"""The delta rule of flash-linear-attention (Triton) at the shapes of bench_delta, and bench_delta itself in the same run:
decode of 1, 64 and 256 sequences by its recurrent kernel, prompts of 1k, 8k and 32k tokens by its chunk kernel. Its norm of
q and k is in the kernels, as in the models; ours is in "mix", with the convolution. Our decode includes
the gated norm. With BENCH_DELTA_BACKWARD also the gradients of prompts: its forward and backward pass by autograd less its
forward pass, ours of the rule alone. Microseconds in CUDA graphs over enough
states that they come from memory; medians of rounds that alternate.

Usage: delta_peers.py BENCH_DELTA [--backward BENCH_DELTA_BACKWARD] [key heads] [value heads]
Needs PyTorch and flash-linear-attention: pip install torch==2.11 flash-linear-attention"""
import re
import statistics
import subprocess
import sys

DIM, ROUNDS, TURNS, MEMORY = 128, 3, 7, 400 << 20

try:
    import torch
except ImportError:
    sys.exit("delta_peers.py: PyTorch is missing: pip install torch==2.11")
try:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
except ImportError as e:
    sys.exit(f"delta_peers.py: flash-linear-attention is missing ({e}): pip install flash-linear-attention")


def inputs(batch, rows, key_heads, value_heads):
    def random(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    return dict(q=random(batch, rows, key_heads, DIM), k=random(batch, rows, key_heads, DIM),
                v=random(batch, rows, value_heads, DIM),
                g=-torch.rand(batch, rows, value_heads, device="cuda"),
                beta=torch.rand(batch, rows, value_heads, device="cuda"))


def timed(calls):
    """Microseconds of one of the calls, all of them in one graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            for call in calls[:2]:
                call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for turn in range(TURNS + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if turn >= 2:
            times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times)


def decode(batch, key_heads, value_heads):
    state_bytes = batch * value_heads * DIM * DIM * 4
    count = max(1, min(64, MEMORY // state_bytes))
    states = [torch.zeros(batch, value_heads, DIM, DIM, device="cuda") for _ in range(count)]
    x = inputs(batch, 1, key_heads, value_heads)
    return timed([lambda s=s: fused_recurrent_gated_delta_rule(**x, initial_state=s, output_final_state=True,
                                                               use_qk_l2norm_in_kernel=True) for s in states])


def prompt(rows, key_heads, value_heads):
    """Inputs that its chunk kernel takes: some versions want as many heads of q and k as of v."""
    x = inputs(1, rows, key_heads, value_heads)
    try:
        chunk_gated_delta_rule(**x, use_qk_l2norm_in_kernel=True)
    except Exception:
        for name in "qk":
            x[name] = x[name].repeat_interleave(value_heads // key_heads, 2)
    return x


def prefill(rows, key_heads, value_heads):
    x = prompt(rows, key_heads, value_heads)
    return timed([lambda: chunk_gated_delta_rule(**x, output_final_state=True, use_qk_l2norm_in_kernel=True)] * 2)


def backward(rows, key_heads, value_heads):
    """Both passes, and the forward pass as training runs it."""
    x = prompt(rows, key_heads, value_heads)
    gradient = torch.randn(1, rows, value_heads, DIM, device="cuda", dtype=torch.bfloat16)
    for t in x.values():
        t.requires_grad_(True)

    def forward():
        return chunk_gated_delta_rule(**x, use_qk_l2norm_in_kernel=True)[0]

    def both():
        torch.autograd.grad(forward(), list(x.values()), gradient)

    with torch.enable_grad():
        return timed([both] * 2), timed([forward] * 2)


def ours_backward(program, heads):
    found = {}
    for line in subprocess.run([program, *heads], check=True, capture_output=True, text=True).stdout.splitlines():
        if m := re.match(r"backward +1x(\d+) +[\d.]+ +[\d.]+ +([\d.]+)", line):
            found[int(m[1])] = float(m[2])
    return found


def compare_backward(program, heads, key_heads, value_heads):
    sizes = 1024, 8192, 32768
    mine, theirs = {n: [] for n in sizes}, {n: [] for n in sizes}
    for _ in range(ROUNDS):
        for n, time in ours_backward(program, heads).items():
            mine[n].append(time)
        for n in sizes:
            both, forward = backward(n, key_heads, value_heads)
            theirs[n].append((both - forward, forward))
    for n in sizes:
        other, rule = statistics.median(t[0] for t in theirs[n]), statistics.median(mine[n])
        print(f"backward {n:6} {other:10.2f} {rule:10.2f} {other / rule:6.2f}   its forward pass "
              f"{statistics.median(t[1] for t in theirs[n]):10.2f}")


def ours(program, heads):
    """{(kind, size): (mix, rule)}: of decode at a block's middle, and of prompts."""
    found = {}
    for line in subprocess.run([program, *heads], check=True, capture_output=True, text=True).stdout.splitlines():
        if m := re.match(r"decode +(\d+) +32 +([\d.]+) +([\d.]+)", line):
            found["decode", int(m[1])] = float(m[2]), float(m[3])
        elif m := re.match(r"prefill +1x(\d+) +([\d.]+) +([\d.]+)", line):
            found["prefill", int(m[1])] = float(m[2]), float(m[3])
    return found


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.set_grad_enabled(False)
    program, heads = sys.argv[1], sys.argv[2:]
    gradients = heads[1] if heads[:1] == ["--backward"] and len(heads) > 1 else None
    heads = heads[2:] if gradients else heads
    key_heads, value_heads = (int(h) for h in heads) if len(heads) == 2 else (16, 32)
    cases = [("decode", n) for n in (1, 64, 256)] + [("prefill", n) for n in (1024, 8192, 32768)]
    mine, theirs = {c: [] for c in cases}, {c: [] for c in cases}
    for _ in range(ROUNDS):
        for case, times in ours(program, heads).items():
            mine[case].append(times)
        for kind, n in cases:
            measure = decode if kind == "decode" else prefill
            theirs[kind, n].append(measure(n, key_heads, value_heads))
    print(f"{key_heads} key heads, {value_heads} value heads, {torch.cuda.get_device_name()}, torch {torch.__version__}; "
          "microseconds")
    print(f"{'':8} {'size':>6} {'fla':>10} {'rule':>10} {'ratio':>6} {'mix':>10}")
    for case in cases:
        other, rule = statistics.median(theirs[case]), statistics.median(t[1] for t in mine[case])
        mix = statistics.median(t[0] for t in mine[case])
        print(f"{case[0]:8} {case[1]:6} {other:10.2f} {rule:10.2f} {other / rule:6.2f} {mix:10.2f}")
    if gradients:
        compare_backward(gradients, heads, key_heads, value_heads)


if __name__ == "__main__":
    main()
