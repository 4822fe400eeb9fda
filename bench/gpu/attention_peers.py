"""Attention compared with cuDNN's (torch's scaled_dot_product_attention), bf16, 32 query heads over 8: microseconds per
launch and the utilization of the machine. Launches run in CUDA graphs over enough sets of inputs that keys come from
memory; medians; the two alternate. "alone": with a node between launches, so that none overlaps with the previous one.

Usage: attention_peers.py LIBRARY [decode] [prefill] [quick] [--json FILE]
LIBRARY: libinvar_gpu_ops.so, or attention_shim.c and the objects of src/kernels/cuda/attention*, as a shared object."""
import ctypes
import math
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import measure

HEADS, KV_HEADS, BLOCK = 32, 8, 64


class Span(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int32) for n in ("first_row", "rows", "position", "table")]


class Ours:
    """One set of inputs: `batch` sequences, `rows` queries each at the end of `context` keys."""

    def __init__(self, lib, batch, rows, context, dim, k, v):
        self.lib, self.dim, self.rows = lib, dim, batch * rows
        self.blocks = (context + BLOCK - 1) // BLOCK
        n = batch * self.blocks
        order = torch.randperm(n, device="cuda")
        self.tables = torch.empty(n, dtype=torch.int32, device="cuda")
        self.tables[:] = order
        pages = torch.zeros(n, KV_HEADS, 2, BLOCK, dim, dtype=torch.bfloat16, device="cuda")
        for i, x in ((0, k), (1, v)):  # [batch, kv_heads, context, dim]
            x = x.reshape(batch, KV_HEADS, self.blocks, BLOCK, dim).permute(0, 2, 1, 3, 4)
            pages[order, :, i] = x.reshape(n, KV_HEADS, BLOCK, dim)
        self.pages, self.page_count = pages, n
        spans = (Span * batch)(*[Span(i * rows, rows, context - rows, i * self.blocks) for i in range(batch)])
        size = (HEADS, KV_HEADS, dim)
        limits = (ctypes.c_size_t(self.rows), ctypes.c_size_t(batch))
        plan = ctypes.create_string_buffer(lib.shim_plan_bytes(*size, *limits))
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count
        used = lib.shim_plan(*size, spans, ctypes.c_size_t(batch), self.sms, plan, ctypes.c_size_t(len(plan)))
        assert used > 0
        self.plan = torch.frombuffer(bytearray(plan.raw[:used]), dtype=torch.uint8).cuda()
        self.spans = torch.frombuffer(bytearray(bytes(spans)), dtype=torch.uint8).cuda()
        self.scratch = torch.zeros(lib.shim_scratch(*size), dtype=torch.uint8, device="cuda")
        self.decode = rows == 1
        self.scale = 1.4426950408889634 / math.sqrt(dim)

    def run(self, q, out):
        pointer = lambda t: ctypes.c_void_p(t.data_ptr())
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = self.lib.shim_run(HEADS, KV_HEADS, self.dim, ctypes.c_float(self.scale), pointer(q),
                                 pointer(self.pages), ctypes.c_size_t(self.page_count), pointer(out),
                                 pointer(self.plan), pointer(self.spans), pointer(self.tables),
                                 pointer(self.scratch), int(self.decode), self.sms, ctypes.c_size_t(self.rows),
                                 stream)
        assert code == 0, code


def graph_of(calls):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for c in calls[:2]:
            c()
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g, stream=stream):
        for c in calls:
            c()
    return g


def time_graphs(graphs, launches, repeats):
    """Median microseconds per launch of each graph, alternating."""
    times = [[] for _ in graphs]
    for i in range(repeats + 2):
        for g, t in zip(graphs, times):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            g.replay()
            b.record()
            b.synchronize()
            if i >= 2:
                t.append(a.elapsed_time(b) * 1000 / launches)
    return [statistics.median(t) for t in times]


def case(lib, records, batch, rows, context, dim):
    bytes_each = 2 * batch * KV_HEADS * context * dim * 2
    sets = max(1, min(16, math.ceil(200e6 / bytes_each))) if rows == 1 else 1
    data, check = [], None
    for _ in range(sets):
        q = torch.randn(batch, rows, HEADS, dim, device="cuda", dtype=torch.bfloat16)
        k = torch.randn(batch, KV_HEADS, context, dim, device="cuda", dtype=torch.bfloat16)
        v = torch.randn(batch, KV_HEADS, context, dim, device="cuda", dtype=torch.bfloat16)
        ours = Ours(lib, batch, rows, context, dim, k, v)
        data.append((q, k, v, ours, torch.empty_like(q)))
    cold = torch.zeros(1, device="cuda")

    def peer(s):
        q, k, v = s[0].transpose(1, 2), s[1], s[2]
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=rows > 1, enable_gqa=True)

    s = data[0]
    s[3].run(s[0], s[4])
    torch.cuda.synchronize()
    # Causal in the peer means rows == context.
    want = peer(s).transpose(1, 2)
    check = ((s[4].float() - want.float()).norm() / want.float().norm()).item()
    launches = max(sets, 16) if bytes_each < 400e6 and rows == 1 else 4
    if rows > 1:
        launches = max(2, min(20, int(4e13 / (rows * rows * HEADS * dim * 2))))
    pick = [data[i % sets] for i in range(launches)]
    mine = graph_of([lambda s=s: s[3].run(s[0], s[4]) for s in pick])
    theirs = graph_of([lambda s=s: peer(s) for s in pick])
    graphs = [mine, theirs]
    if rows == 1 and batch == 1:  # with a node in between that does not overlap
        def apart(f):
            def both(s):
                cold.zero_()
                f(s)
            return both
        a, b = apart(lambda s: s[3].run(s[0], s[4])), apart(peer)
        graphs += [graph_of([lambda s=s: a(s) for s in pick]), graph_of([lambda s=s: b(s) for s in pick]),
                   graph_of([cold.zero_ for _ in pick])]
    t = time_graphs(graphs, launches, 15)
    if rows == 1:
        rate = [bytes_each / x / 1e6 for x in t[:2]]
        unit = "TB/s"
    else:
        rate = [rows * (context - rows + rows / 2) * batch * HEADS * dim * 4 / x / 1e6 for x in t[:2]]
        unit = "TFLOP/s"
    more = f"   alone {t[2] - t[4]:.1f} [{t[3] - t[4]:.1f}]" if len(t) > 2 else ""
    print(f"batch {batch:3d} rows {rows:5d} context {context:6d} dim {dim:3d}: {t[0]:9.1f} us [{t[1]:9.1f}] "
          f"{rate[0]:7.2f} [{rate[1]:7.2f}] {unit}  x{t[1] / t[0]:.3f}  off by {check:.1e}{more}", flush=True)
    for method, us in (("invar", t[0]), ("cudnn", t[1])):
        records.add({"bench": "attention", "method": method, "what": "decode" if rows == 1 else "prefill",
                     "batch": batch, "context": context, "dim": dim, "us": round(us, 2)})


def main():
    lib = ctypes.CDLL(sys.argv[1])
    for f in (lib.shim_scratch, lib.shim_plan_bytes, lib.shim_plan):
        f.restype = ctypes.c_size_t
    what, quick = sys.argv[2:], "quick" in sys.argv
    records = measure.Records(what[what.index("--json") + 1] if "--json" in what else None)
    peer = f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    print(f"{torch.cuda.get_device_name()}, {peer}; cuDNN in []")
    decode = [(1, 1024, 128), (1, 8192, 128), (1, 32768, 128), (16, 2048, 128), (64, 1024, 128), (64, 8192, 128),
              (256, 1024, 128), (256, 4096, 128), (1, 8192, 64), (64, 8192, 64)]
    prefill = [(2048, 128), (8192, 128), (32768, 128), (8192, 64)]
    if quick:
        decode, prefill = [decode[i] for i in (0, 1, 5)], prefill[:2]
    if "decode" in what:
        for batch, context, dim in decode:
            case(lib, records, batch, 1, context, dim)
    if "prefill" in what:
        for rows, dim in prefill:
            case(lib, records, 1, rows, rows, dim)


if __name__ == "__main__":
    main()
