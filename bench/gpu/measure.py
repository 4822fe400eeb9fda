"""measure.py: timing and records for the scripts of this folder.

A method is a list of calls, one for each set of inputs; together the sets exceed the L2 cache, so weights come from
memory as in a model. A method's calls are captured repeatedly into one CUDA graph; methods alternate, and the figure is
the median over turns. A method that cannot run is reported with the reason.

Records are JSON, one per line: {"bench": ..., "method": ..., "us": ..., sizes}; the first one describes the machine.
"""

import datetime
import json
import statistics
import subprocess
import sys

import torch

L2_BYTES = 60 << 20


def sets_for(bytes_each, least=2, most=64):
    """The number of sets of inputs that exceeds the cache."""
    return max(least, min(most, -(-3 * L2_BYTES // max(1, bytes_each))))


def once(call):
    """Milliseconds of one call, not captured."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def capture(calls, launches):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            calls[i % len(calls)]()
    return graph


def prepare(calls, graph_ms):
    """A graph of about graph_ms, and its number of calls: each set at least once, and equally often."""
    calls[0]()
    torch.cuda.synchronize()
    quick = min(once(calls[i % len(calls)]) for i in range(3))
    rounds = max(1, min(400, int(graph_ms / max(quick, 1e-3))) // len(calls))
    launches = rounds * len(calls) if quick * len(calls) < 20 * graph_ms else min(len(calls), 2)
    return capture(calls, launches), launches


def compare(methods, turns=7, graph_ms=2.0):
    """{name: calls} -> {name: microseconds of one call}, None for those that cannot run."""
    graphs, result = {}, {}
    for name, calls in methods.items():
        try:
            graphs[name] = prepare(calls, graph_ms)
        except Exception as problem:  # any exception of a compared project
            missing(name, problem)
            torch.cuda.synchronize()
            result[name] = None
    taken = {name: [] for name in graphs}
    for turn in range(turns + 1):  # the first is warm-up
        for name, (graph, launches) in graphs.items():
            ms = once(graph.replay)
            if turn:
                taken[name].append(1e3 * ms / launches)
    for name in graphs:
        result[name] = statistics.median(taken[name])
    return {name: result[name] for name in methods}


def missing(name, reason):
    print(f"# {name}: not measured: {str(reason).strip().splitlines()[-1][:200] if str(reason).strip() else reason!r}",
          flush=True)


def machine():
    asked = subprocess.run(["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm", "--format=csv,noheader"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    driver = asked.stdout.splitlines()[0] if asked.returncode == 0 and asked.stdout else "unknown"
    return {"bench": "machine", "gpu": torch.cuda.get_device_name(), "driver": driver, "torch": torch.__version__,
            "cuda": torch.version.cuda, "utc": datetime.datetime.now(datetime.timezone.utc).isoformat("T", "minutes")}


class Records:
    """Appends to a file, or does nothing without one."""

    def __init__(self, path):
        self.file = open(path, "w", encoding="utf-8") if path else None
        self.add(machine())

    def add(self, record):
        if self.file:
            print(json.dumps(record), file=self.file, flush=True)


def table(head, rows):
    """Markdown."""
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    sys.stdout.flush()


def warm_up(seconds=0.3):
    """Raises the clocks."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    spent = 0.0
    while spent < 1e3 * seconds:
        spent += once(lambda: [torch.mm(a, a) for _ in range(20)])


def microseconds(us):
    return "-" if us is None else f"{us:.1f}" if us < 1000 else f"{us:.0f}"
