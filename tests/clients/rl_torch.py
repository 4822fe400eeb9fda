"""The messages and the store of rl_stacks.py, made by torch itself, with SGLang's serializer written out. Skipped where torch is
not installed; `python3 rl_torch.py` with a Python that has it."""

import base64
import dataclasses
import importlib.util
import io
import json
import os
import pickle
import sys
import threading
import time
import traceback
import types
from multiprocessing.reduction import ForkingPickler

from support import skip

if importlib.util.find_spec("torch") is None:
    skip("torch is not installed")

import torch
import torch.multiprocessing

sys.modules.setdefault("torch_messages", types.ModuleType("torch_messages"))  # its stand-ins for torch are not wanted here
sys.modules["torch_messages"].free_all = lambda: None
import rl_stacks as rl

torch.multiprocessing.set_sharing_strategy("file_system")
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


def test_file_descriptors():
    torch.multiprocessing.set_sharing_strategy("file_descriptor")
    try:
        with rl.serving(rl.TINY_MATH) as s:
            name, t = next(iter(tensors(rl.TWO).items()))
            s.refused("/update_weights_from_tensor", {"serialized_named_tensors": [serialize([(name, t)])]}, name, "set_sharing_strategy('file_system')")
    finally:
        torch.multiprocessing.set_sharing_strategy("file_system")


def test_store():
    """torch's own TCPStore lets its master go on once the server has joined, with and without libuv."""
    if not rl.STANDIN:
        print("   without $INVAR_STANDIN")
        return
    environment = {"LD_LIBRARY_PATH": rl.STANDIN + ":" + os.environ.get("LD_LIBRARY_PATH", "")}
    for libuv in (True, False):
        with rl.serving(rl.TINY_MATH, "--update-timeout", "20", environment=environment) as s:
            port = rl.socket.create_server(("127.0.0.1", 0))
            number = port.getsockname()[1]
            port.close()
            answer = []
            join = {"master_address": "127.0.0.1", "master_port": number, "rank_offset": 1, "world_size": 2, "group_name": "g", "backend": "nccl"}
            thread = threading.Thread(target=lambda: answer.append(s.call("POST", "/init_weights_update_group", join)))
            thread.start()
            store = torch.distributed.TCPStore("127.0.0.1", number, 2, is_master=True, use_libuv=libuv)
            thread.join()
            rl.check(answer[0][0] == 200, answer)
            prefixed = torch.distributed.PrefixStore("cuda/", torch.distributed.PrefixStore("g/", torch.distributed.PrefixStore("g", store)))
            prefixed.set("0", b"no id")
            body = {"names": ["model.norm.weight"], "dtypes": ["bfloat16"], "shapes": [[256]], "group_name": "g"}
            status, answer = s.call("POST", "/update_weights_from_distributed", body)
            rl.check(status == 500 and "NCCL's id of 128 bytes, found 5" in answer["message"], status, answer)


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
    rl.scratch.cleanup()
    print(f"{len(tests)} tests, {failed} failed, {rl.checks} checks, torch {torch.__version__}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(globals()))
