"""The messages of rl_stacks.py made by torch itself, with SGLang's serializer written out, and a trainer's process groups. Run by
build/venv-torch's Python (rl_python.py), and skipped without it."""

import base64
import dataclasses
import io
import os
import pathlib
import pickle
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler

import rl_python

if __name__ == "__main__":
    rl_python.run_with_torch()

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed import distributed_c10d as c10d

sys.modules.setdefault("torch_messages", types.ModuleType("torch_messages"))  # its stand-ins for torch are not wanted here
sys.modules["torch_messages"].free_all = lambda: None
import rl_stacks as rl

torch.multiprocessing.set_sharing_strategy("file_system")
HERE = pathlib.Path(__file__).resolve().parent
TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}


def serialize(obj):
    out = io.BytesIO()
    ForkingPickler(out).dump(obj)
    return base64.b64encode(out.getvalue()).decode()


def module(name, **members):
    for at in range(1, name.count(".") + 2):
        parent = ".".join(name.split(".")[:at])
        sys.modules.setdefault(parent, types.ModuleType(parent))
    for key, value in members.items():
        value.__module__ = name
        setattr(sys.modules[name], key, value)


@dataclasses.dataclass
class FlattenedTensorMetadata:
    name: str
    shape: torch.Size
    dtype: torch.dtype
    start_idx: int
    end_idx: int
    numel: int


@dataclasses.dataclass
class LocalSerializedTensor:
    values: list


module("sglang.srt.weight_sync.tensor_bucket", FlattenedTensorMetadata=FlattenedTensorMetadata)
module("sglang.srt.model_executor.model_runner", LocalSerializedTensor=LocalSerializedTensor)


def tensors(checkpoint):
    return {name: torch.frombuffer(bytearray(data), dtype=TYPES[dtype]).reshape(shape) for name, (dtype, shape, data) in checkpoint.items()}


def bucket(named):
    flat, meta, at = [], [], 0
    for name, t in named:
        one = t.flatten().view(torch.uint8)
        meta.append(FlattenedTensorMetadata(name, t.shape, t.dtype, at, at + one.numel(), one.numel()))
        flat.append(one)
        at += one.numel()
    return {"flattened_tensor": torch.cat(flat), "metadata": meta}


def update(s, obj, **more):
    return s.post("/update_weights_from_tensor", {"serialized_named_tensors": [serialize(obj)], **more})


def test_buckets():
    with rl.serving(rl.TINY_MATH) as s:
        named = list(tensors(rl.TWO).items())
        kept = [bucket(part) for part in (named[:20], named[20:])]
        for one in kept:
            update(s, one, load_format="flattened_bucket", flush_cache=False, weight_version="1")
        rl.check(s.answer() == rl.WANTED)
        empty = {"flattened_tensor": torch.empty(0, dtype=torch.uint8), "metadata": []}
        update(s, empty, load_format="flattened_bucket")


def test_lists():
    """Parameters, views of one storage, and verl's nested form."""
    with rl.serving(rl.TINY_MATH) as s:
        two = tensors(rl.TWO)
        update(s, [(name, torch.nn.Parameter(t)) for name, t in two.items()])
        rl.check(s.answer() == rl.WANTED)
        whole = torch.cat([t.flatten() for t in tensors(rl.ONE).values()])
        at, views = 0, []
        for name, t in tensors(rl.ONE).items():
            views.append((name, whole[at:at + t.numel()].view(t.shape)))
            at += t.numel()
        update(s, views)
        rl.check(s.answer() == rl.FIRST)
        local = [(name, LocalSerializedTensor([base64.b64decode(serialize(t))])) for name, t in two.items()]
        update(s, local)
        rl.check(s.answer() == rl.WANTED)
        name = "model.layers.0.mlp.down_proj.weight"
        s.refused("/update_weights_from_tensor", {"serialized_named_tensors": [serialize([(name, two[name].t())])]}, name, "not contiguous")


def test_plain_pickles():
    with rl.serving(rl.TINY_MATH, "--max-request-body", "64M") as s:
        text = base64.b64encode(pickle.dumps(list(tensors(rl.TWO).items()))).decode()
        s.post("/update_weights_from_tensor", {"serialized_named_tensors": [text]})
        rl.check(s.answer() == rl.WANTED)


def test_references():
    """The sender's memory goes with its tensors: the message's reference was given back."""
    with rl.serving(rl.TINY_MATH) as s:
        before = {n for n in os.listdir("/dev/shm") if n.startswith(f"torch_{os.getpid()}_")}
        two = tensors(rl.TWO)
        update(s, list(two.items()))
        rl.check(s.answer() == rl.WANTED)
        made = {n for n in os.listdir("/dev/shm") if n.startswith(f"torch_{os.getpid()}_")} - before
        rl.check(len(made) >= len(two), "a control: there is shared memory", len(made))
        del two
        left = made & set(os.listdir("/dev/shm"))
        rl.check(not left, len(left), "of", len(made), "files are left")


def test_memory_is_sent_again():
    """The sender's shared memory outlives the process that has read it, and a server."""
    two = tensors(rl.TWO)
    for _ in range(2):
        with rl.serving(rl.TINY_MATH, "--update-timeout", "60") as s:
            update(s, list(two.items()), weight_version="1")
            pid = s.sidecar()
            os.kill(pid, 9)
            while s.sidecar() == pid:
                time.sleep(0.01)
            time.sleep(3)  # torch's manager of shared memory waits for 2 s
            update(s, list(two.items()), weight_version="2")
            rl.check(s.answer() == rl.WANTED, s.answer())


TRAINER = """
import sys, rl_torch
s = object.__new__(rl_torch.rl.Server)
s.port = int(sys.argv[1])
rl_torch.update(s, list(rl_torch.tensors(rl_torch.rl.TWO).items()))
name, t = next(iter(rl_torch.tensors(rl_torch.rl.ONE).items()))
status, answer = s.call("POST", "/update_weights_from_tensor", {"serialized_named_tensors": [rl_torch.serialize([(name, t), 5])]})
assert status == 400, answer
print("sent")
"""


def test_pipes_end():
    """A trainer's pipes end with it: the server does not keep the manager of its shared memory, which has them too."""
    with rl.serving(rl.TINY_MATH) as s:
        ran = subprocess.run([sys.executable, "-c", TRAINER, str(s.port)], cwd=HERE, capture_output=True, text=True, timeout=60)
        rl.check(ran.returncode == 0 and ran.stdout == "sent\n", ran)
        rl.check(s.answer() == rl.WANTED and s.sidecar() is not None)


def test_file_descriptors():
    torch.multiprocessing.set_sharing_strategy("file_descriptor")
    try:
        with rl.serving(rl.TINY_MATH) as s:
            name, t = next(iter(tensors(rl.TWO).items()))
            s.refused("/update_weights_from_tensor", {"serialized_named_tensors": [serialize([(name, t)])]}, name, "set_sharing_strategy('file_system')")
    finally:
        torch.multiprocessing.set_sharing_strategy("file_system")


# ---- broadcasts


def group_of(name, port, world, backend):
    """slime's, verl's and OpenRLHF's init_process_group: rank 0 of a group next to the default one."""
    limit = timedelta(seconds=30)
    store, rank, size = next(c10d.rendezvous(f"tcp://127.0.0.1:{port}", 0, world, timeout=limit))
    store.set_timeout(limit)
    group, _ = c10d._new_process_group_helper(size, rank, [], c10d.Backend(backend), c10d.PrefixStore(name, store), group_name=name, timeout=limit)
    c10d._world.pg_group_ranks[group] = {i: i for i in range(size)}
    return group


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def join(s, name, world=2, backend="gloo"):
    port, answer = free_port(), []
    body = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": world, "group_name": name, "backend": backend}
    thread = threading.Thread(target=lambda: answer.append(s.call("POST", "/init_weights_update_group", body)))
    thread.start()
    group = group_of(name, port, world, backend)
    thread.join()
    rl.check(answer[0][0] == 200, answer)
    return group


def broadcast(s, group, name, tensors, version, **more):
    """update_weights_from_distributed: the call, and the broadcasts meanwhile."""
    body = {"names": [n for n, _ in tensors], "dtypes": [str(t.dtype).replace("torch.", "") for _, t in tensors],
            "shapes": [list(t.shape) for _, t in tensors], "group_name": name, "flush_cache": False, "weight_version": version} | more

    def send():
        for work in [dist.broadcast(t, 0, group=group, async_op=True) for _, t in tensors]:
            work.wait()

    sender = threading.Thread(target=send, daemon=True)  # hangs where the server does not receive
    sender.start()
    status, answer = s.call("POST", "/update_weights_from_distributed", body)
    if status in (200, 400):
        sender.join()
    return status, answer


def test_slime_distributed():
    for flags, ranks in (((), 1), (("--tensor-parallel-size", "2"), 2)):
        with rl.serving(rl.TINY_MATH, "--update-timeout", "60", *flags) as s:
            name = f"slime-pp_{ranks}"
            group = join(s, name, 1 + ranks)
            s.refused("/init_weights_update_group", {"master_address": "127.0.0.1", "master_port": 9, "rank_offset": 1, "world_size": 3,
                                                     "group_name": name, "backend": "gloo"}, "in use")
            s.post("/pause_generation", {})
            rl.slime_flush(s)
            for part in rl.parts(list(tensors(rl.TWO).items()), 3):
                status, answer = broadcast(s, group, name, part, "1")
                rl.check(status == 200, answer)
            s.post("/continue_generation", {})
            rl.check(s.answer() == rl.WANTED, s.answer())
            s.kill_engine()
            rl.check(s.answer() == rl.WANTED, "a restarted engine has the updated weights")
            other, t = list(tensors(rl.ONE).items())[2]
            status, answer = broadcast(s, group, name, [(other, t.unsqueeze(0))], "2")
            rl.check(status == 400 and other in answer["message"] and "shape" in answer["message"], status, answer)
            rl.check(s.answer() == rl.WANTED)
            status, answer = broadcast(s, group, name, list(tensors(rl.ONE).items()), "3")
            rl.check(status == 200 and s.answer() == rl.FIRST, "the group is still of use", answer)
            s.post("/destroy_weights_update_group", {"group_name": name})
            s.refused("/destroy_weights_update_group", {"group_name": name}, name)


def test_two_groups():
    """Two at a time; the weights by halves over each; a version between them drops the first half."""
    with rl.serving(rl.TINY_MATH, "--update-timeout", "60") as s:
        first, second = join(s, "a"), join(s, "b")
        halves = rl.parts(list(tensors(rl.TWO).items()), 2)
        status, answer = broadcast(s, first, "a", halves[0], "1")
        rl.check(status == 200 and answer["missing"] == len(halves[1]), answer)
        status, answer = broadcast(s, second, "b", halves[1], "2")
        rl.check(status == 200 and answer["missing"] == len(halves[0]) and s.answer() == rl.FIRST, "another version", answer)
        status, answer = broadcast(s, first, "a", halves[0], "2")
        rl.check(status == 200 and s.answer() == rl.WANTED, answer)


def test_wrong_groups():
    join_body = {"master_address": "127.0.0.1", "master_port": free_port(), "rank_offset": 1, "world_size": 2, "group_name": "g", "backend": "gloo"}
    with rl.serving(rl.TINY_MATH, "--update-timeout", "15") as s:
        for change, words in [({"rank_offset": 2}, "rank_offset"), ({"backend": "mpi"}, "backend"), ({"master_port": 0}, "master_port"),
                              ({"world_size": "2"}, "world_size"), ({"group_name": "x" * 201}, "group_name"), ({"group_name": 5}, "group_name"),
                              ({"master_address": None}, "master_address"), ({"backend": "nccl"}, "no GPU")]:
            s.refused("/init_weights_update_group", join_body | change, words, status=400)
        s.refused("/init_weights_update_group", join_body, "group g", status=500)  # a trainer that never comes
        names = {"names": ["a"], "dtypes": ["bfloat16"], "shapes": [[1]], "group_name": "g"}
        s.refused("/update_weights_from_distributed", names, "no group g")
        group = join(s, "g")
        for change, words in [({"dtypes": []}, "names"), ({"dtypes": ["complex64"]}, "complex64"), ({"shapes": [[-1]]}, "shapes"),
                              ({"shapes": [[1 << 62, 4]]}, "shapes"), ({"names": [1]}, "names[0]"), ({"names": None}, "names"), ({"load_format": "x"}, "load_format")]:
            s.refused("/update_weights_from_distributed", names | change, words)
        pid = s.sidecar()
        status, answer = s.call("POST", "/update_weights_from_distributed", names)  # no broadcast comes
        rl.check(status == 500 and "group g" in answer["message"], status, answer)
        status, answer = s.call("POST", "/update_weights_from_distributed", names)
        rl.check(status == 500 and "earlier broadcast failed" in answer["message"], status, answer)
        s.post("/destroy_weights_update_group", {"group_name": "g"})
        rl.check(s.sidecar() == pid and s.answer() == rl.FIRST)
        del group


def main(functions):
    names, failed = sys.argv[1:], 0
    tests = [f for name, f in sorted(functions.items()) if name.startswith("test_") and (not names or name[5:] in names)]
    for test in tests:
        begin = time.monotonic()
        try:
            test()
            word = "ok"
        except Exception:
            traceback.print_exc()
            failed, word = failed + 1, "FAILED"
        print(f"{word} {test.__name__} in {time.monotonic() - begin:.1f} s", flush=True)
    rl.finish()
    print(f"{len(tests)} tests, {failed} failed, {rl.checks} checks, torch {torch.__version__}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(globals()))
