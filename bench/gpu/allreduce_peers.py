"""allreduce_peers.py: the tree all-reduce of the ranks, compared with NCCL's all-reduce.

    python3 bench/gpu/allreduce_peers.py RANKS BENCH_ALLREDUCE [HIDDEN [JSON]]

NCCL sums bf16 activations of M x HIDDEN, one process per GPU, in CUDA graphs. BENCH_ALLREDUCE (bench/gpu/allreduce.c)
reduces fp32 nodes of as many rows, adds the residual and normalizes, which NCCL needs separate kernels for. They
alternate; medians.
"""

import datetime
import os
import socket
import statistics
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import measure

ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SHORT, LONG, TURNS, ROUNDS = 10, 70, 7, 2


def graph_of(x, count):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for y in x:
            dist.all_reduce(y)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            dist.all_reduce(x[i % 2])
    return graph


def milliseconds(graph):
    taken = []
    for _ in range(TURNS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        dist.barrier()
        torch.cuda.synchronize()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end))
    return statistics.median(taken)


def nccl(graphs):
    return {rows: 1e3 * (milliseconds(long) - milliseconds(short)) / (LONG - SHORT) for rows, (short, long) in graphs.items()}


def ours(ranks, program, hidden):
    text = subprocess.run([program, str(ranks), str(hidden)], capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in text.splitlines()]
    return {int(rows): (float(one), float(two), way) for rows, one, two, way in lines}


def table(theirs, mine, records, ranks, hidden):
    print(f"{'rows':>5} {'NCCL':>8} {'one-shot':>9} {'two-shot':>9} {'chosen':>8}  ratio   (us, medians of turns)")
    for rows in ROWS:
        n = statistics.median(turn[rows] for turn in theirs)
        one, two = (statistics.median(turn[rows][i] for turn in mine) for i in (0, 1))
        chosen = one if mine[0][rows][2] == "one" else two
        print(f"{rows:5} {n:8.2f} {one:9.2f} {two:9.2f} {chosen:8.2f} {chosen / n:6.2f}")
        for method, us in (("nccl", n), ("invar", chosen)):
            records.add({"bench": "allreduce", "method": method, "gpus": ranks, "m": rows, "hidden": hidden,
                         "us": round(us, 2)})


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def worker(rank, ranks, program, hidden, path, port):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks,
                            device_id=torch.device("cuda", rank))
    waiting = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=300))
    graphs, kept = {}, []
    for rows in ROWS:
        x = [torch.randn(rows, hidden, device="cuda").to(torch.bfloat16) * 0.001 for _ in range(2)]
        graphs[rows] = graph_of(x, SHORT), graph_of(x, LONG)
        kept.append(x)  # graphs do not keep it
    theirs, mine = [], []
    for _ in range(ROUNDS):
        theirs.append(nccl(graphs))
        torch.cuda.synchronize()
        dist.barrier(group=waiting)
        if rank == 0:
            mine.append(ours(ranks, program, hidden))
        dist.barrier(group=waiting)
    if rank == 0:
        print(f"{ranks} x {torch.cuda.get_device_name()}, hidden {hidden}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
        table(theirs, mine, measure.Records(path), ranks, hidden)
        sys.stdout.flush()
    dist.barrier(group=waiting)
    os._exit(0)  # the group cannot be destroyed while graphs hold its communicator, nor the graphs before it


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    count = int(sys.argv[1])
    size, path = int(sys.argv[3]) if len(sys.argv) > 3 else 4096, sys.argv[4] if len(sys.argv) > 4 else None
    mp.spawn(worker, (count, sys.argv[2], size, path, free_port()), nprocs=count)
