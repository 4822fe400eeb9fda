"""Weights that torch keeps on a GPU, as slime and verl send them: CUDA IPC handles, and NCCL's broadcasts; and a mixture's experts as
GPUs report them. `python3 rl_gpus.py [NAME...]` with $INVAR_BINARY, and a Python that has torch and nothing else; skipped where it sees no
GPU. Broadcasts need two GPUs: the server takes the second. With INVAR_RL_DEVICE=cpu the server's engine needs no GPU."""

import base64
import gc
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import threading
import time

import rl_python
from support import skip

if __name__ == "__main__":
    rl_python.run_with_torch()

import torch
import torch.distributed as dist
import torch.multiprocessing.reductions as reductions

if not torch.cuda.is_available():
    skip("torch sees no GPU")

DEVICE = os.environ["INVAR_DEVICE"] = os.environ.get("INVAR_RL_DEVICE", "cuda")  # of the server's engine
import rl_torch as rt
from rl_torch import rl

rl.keeping = False  # processes and GPU memory of one test at a time

LARGE = pathlib.Path(__file__).resolve().parents[2] / "bench" / "gpu" / "configs" / "qwen3-0.6b"
UPDATE_S = "60"


def on_gpu(checkpoint):
    return {name: t.cuda() for name, t in rt.tensors(checkpoint).items()}


def _rebuild_cuda_tensor_modified(*_):
    raise AssertionError("never called")


class Uuids:
    """SGLang's patch of torch: a message names a GPU by its UUID."""

    def __enter__(self):
        self.kept = reductions.reduce_tensor, reductions.rebuild_cuda_tensor
        original = reductions.reduce_tensor

        def reduce(tensor):
            call, arguments = original(tensor)
            if call is not _rebuild_cuda_tensor_modified:
                return call, arguments
            return call, (*arguments[:6], str(torch.cuda.get_device_properties(arguments[6]).uuid), *arguments[7:])

        reductions.reduce_tensor, reductions.rebuild_cuda_tensor = reduce, _rebuild_cuda_tensor_modified
        reductions.init_reductions()

    def __exit__(self, *_):
        reductions.reduce_tensor, reductions.rebuild_cuda_tensor = self.kept
        reductions.init_reductions()


# ---- handles


def test_lists():
    """Tensors one by one, the GPU by number and by UUID; verl's nested form."""
    with rl.serving(rl.TINY_MATH) as s:
        one, two = on_gpu(rl.ONE), on_gpu(rl.TWO)
        rt.update(s, list(two.items()), load_format=None)
        rl.check(s.answer() == rl.WANTED, s.answer())
        with Uuids():
            text = rt.serialize(list(one.items()))
            rl.check(str(torch.cuda.get_device_properties(0).uuid).encode() in base64.b64decode(text), "a control: it names the UUID")
            s.post("/update_weights_from_tensor", {"serialized_named_tensors": [text]})
        rl.check(s.answer() == rl.FIRST, s.answer())
        local = [(name, rt.LocalSerializedTensor([base64.b64decode(rt.serialize(t))])) for name, t in two.items()]
        rt.update(s, local)
        rl.check(s.answer() == rl.WANTED, s.answer())


def test_buckets():
    """slime's; the engine dies afterwards."""
    with rl.serving(rl.TINY_MATH) as s:
        named = list(on_gpu(rl.TWO).items())
        kept = [rt.bucket(part) for part in rl.parts(named, 3)]
        s.post("/pause_generation", {})
        rl.slime_flush(s)
        for one in kept:
            rt.update(s, one, load_format="flattened_bucket", flush_cache=False, weight_version="1")
        s.post("/continue_generation", {})
        rl.check(s.answer() == rl.WANTED, s.answer())
        s.kill_engine()
        rl.check(s.answer() == rl.WANTED, "a restarted engine has the updated weights")


def test_unfinished_work():
    """A message is made before its bucket has been written: the server waits for the event in it."""
    with rl.serving(rl.TINY_MATH) as s:
        whole = rt.bucket(list(on_gpu(rl.TWO).items()))
        late = {"flattened_tensor": torch.zeros_like(whole["flattened_tensor"]), "metadata": whole["metadata"]}
        torch.cuda.synchronize()
        begin = time.monotonic()
        torch.cuda._sleep(int(3e9))  # more than a second
        late["flattened_tensor"].copy_(whole["flattened_tensor"])
        text = rt.serialize(late)
        rl.check(not torch.cuda.current_stream().query(), "a control: the GPU has not come to it", time.monotonic() - begin)
        s.post("/update_weights_from_tensor", {"serialized_named_tensors": [text], "load_format": "flattened_bucket"})
        rl.check(s.answer() == rl.WANTED, s.answer())


def test_counts():
    """torch has its memory back once the server has read it."""
    def in_use():
        gc.collect()
        torch.cuda.ipc_collect()
        return torch.cuda.memory_allocated()

    with rl.serving(rl.TINY_MATH) as s:
        before = in_use()
        two = on_gpu(rl.TWO)
        rt.update(s, list(two.items()))
        del two
        rl.check(in_use() == before, before, in_use())
        unsent = torch.zeros(1 << 20, device="cuda")
        rt.serialize(unsent)
        del unsent
        rl.check(in_use() > before, "a control: a message that nobody reads keeps its memory")


def test_dead_sender():
    """A handle of a process that has ended: an error, after which the weights process reads the next message."""
    code = ("import rl_torch as rt, torch; name, (_, shape, _) = next(iter(rt.rl.TWO.items()));"
            "print('TEXT', rt.serialize([(name, torch.zeros(shape, dtype=torch.bfloat16, device='cuda'))]), flush=True); import os; os._exit(0)")
    ran = subprocess.run([sys.executable, "-c", code], cwd=pathlib.Path(__file__).parent, capture_output=True, text=True, check=True)
    text = next(line[5:] for line in ran.stdout.splitlines() if line.startswith("TEXT "))
    with rl.serving(rl.TINY_MATH) as s:
        status, answer = s.call("POST", "/update_weights_from_tensor", {"serialized_named_tensors": [text]})
        rl.check(status >= 400 and next(iter(rl.TWO)) in answer["message"] and s.answer() == rl.FIRST, status, answer)
        rt.update(s, list(on_gpu(rl.TWO).items()))
        rl.check(s.answer() == rl.WANTED, s.answer())


def test_expandable_segments():
    """Refused by name."""
    settings = getattr(torch.cuda.memory, "_set_allocator_settings", None)
    if settings is None:
        print("   this torch has no _set_allocator_settings")
        return
    name, (_, shape, _) = next(iter(rl.TWO.items()))
    settings("expandable_segments:True")
    try:
        text = rt.serialize([(name, torch.zeros(64 << 20, dtype=torch.bfloat16, device="cuda")[:shape[0] * shape[1]].view(shape))])
    finally:
        settings("expandable_segments:False")
    with rl.serving(rl.TINY_MATH) as s:
        s.refused("/update_weights_from_tensor", {"serialized_named_tensors": [text]}, name, "PYTORCH_CUDA_ALLOC_CONF")


def large_tensors(config, seed):
    g, h = torch.Generator("cuda").manual_seed(seed), config["hidden_size"]
    dim, heads, kv, inner = config["head_dim"], config["num_attention_heads"], config["num_key_value_heads"], config["intermediate_size"]
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], h], "model.norm.weight": [h]}
    for i in range(config["num_hidden_layers"]):
        layer = {"input_layernorm": [h], "post_attention_layernorm": [h], "self_attn.q_norm": [dim], "self_attn.k_norm": [dim],
                 "self_attn.q_proj": [heads * dim, h], "self_attn.k_proj": [kv * dim, h], "self_attn.v_proj": [kv * dim, h],
                 "self_attn.o_proj": [h, heads * dim], "mlp.gate_proj": [inner, h], "mlp.up_proj": [inner, h], "mlp.down_proj": [h, inner]}
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return {name: (torch.randn(shape, generator=g, device="cuda") * 0.02 + (len(shape) == 1)).bfloat16() for name, shape in shapes.items()}


def write_model(folder, config, tensors):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(rl.TINY_MATH / name, folder)
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(t.shape), "data_offsets": [at, at + 2 * t.numel()]}
        at += 2 * t.numel()
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            file.write(t.view(torch.uint8).cpu().numpy().tobytes())


def test_large():
    """1.2 GB in buckets, in place of dummy weights."""
    config = json.loads((LARGE / "config.json").read_text()) | {"eos_token_id": 0, "bos_token_id": None}
    rl.check(config["tie_word_embeddings"], config)
    tensors = large_tensors(config, 5)
    model = pathlib.Path(rl.scratch.name) / "large"
    write_model(model, config, tensors)
    flags = ["--max-model-len", "2048", "--kv-cache-memory", "1G"]
    with rl.serving(model, *flags) as s:
        wanted = s.answer()
    with rl.serving(model, *flags, "--load-format", "dummy") as s:
        rl.check(s.answer()[0] != wanted[0], "a control: the weights are others")
        kept, begin = [rt.bucket(part) for part in rl.parts(list(tensors.items()), 4)], time.monotonic()
        for one in kept:
            rt.update(s, one, load_format="flattened_bucket", flush_cache=False, weight_version="1")
        seconds, size = time.monotonic() - begin, sum(t.numel() * 2 for t in tensors.values())
        rl.check(s.answer() == wanted, s.answer(), wanted)
        print(f"   {size / 1e9:.2f} GB by handles in {seconds:.2f} s")


def test_experts():
    """Those of a CPU with the same arithmetic, alone and in batches."""
    if DEVICE != "cuda":
        print("   needs an engine on a GPU")
        return
    model = pathlib.Path(__file__).resolve().parents[1] / "data" / "hf" / "qwen3_moe"
    prompts = [[(7 * i + j) % 90 + 1 for i in range(20 + 9 * j)] for j in range(8)]
    body = {"sampling_params": {"temperature": 0, "max_new_tokens": 20, "ignore_eos": True}, "return_routed_experts": True}

    def tables(s):
        return [a["meta_info"]["routed_experts"] for a in s.post("/generate", {"input_ids": prompts} | body)]

    with rl.serving(model, "--arithmetic", "tc16", environment={"INVAR_DEVICE": "cpu"}) as s:
        wanted = tables(s)
    with rl.serving(model, "--max-num-batched-tokens", "40") as s:
        rl.check(tables(s) == wanted)
        rl.check([s.post("/generate", {"input_ids": ids} | body)["meta_info"]["routed_experts"] for ids in prompts] == wanted, "alone")
    rl.check(len(set(wanted)) == len(wanted), "a control: they differ")


# ---- broadcasts


def join(s, name):
    return rt.join(s, name, backend="nccl")


def broadcast(s, group, name, tensors, version):
    status, answer = rt.broadcast(s, group, name, tensors, version)
    if status in (200, 400):
        torch.cuda.synchronize()
    return status, answer


def distributed_server(gpu):
    return rl.serving(rl.TINY_MATH, "--update-timeout", UPDATE_S, environment={"CUDA_VISIBLE_DEVICES": str(gpu)})


def test_broadcasts():
    """Two GPUs: three calls make a set; the engine dies; another set over the same group, then over another."""
    if torch.cuda.device_count() < 2:
        print("   needs two GPUs")
        return
    with distributed_server(1) as s:
        rl.check(s.answer() == rl.FIRST, s.answer())
        group = join(s, "slime-pp_0")
        s.post("/pause_generation", {})
        rl.slime_flush(s)
        for part in rl.parts(list(on_gpu(rl.TWO).items()), 3):
            status, answer = broadcast(s, group, "slime-pp_0", part, "1")
            rl.check(status == 200, answer)
        s.post("/continue_generation", {})
        rl.check(s.answer() == rl.WANTED, s.answer())
        s.kill_engine()
        rl.check(s.answer() == rl.WANTED, "a restarted engine has the updated weights")
        status, answer = broadcast(s, group, "slime-pp_0", list(on_gpu(rl.ONE).items()), "2")
        rl.check(status == 200 and s.answer() == rl.FIRST, answer)
        name, t = list(on_gpu(rl.TWO).items())[2]
        status, answer = broadcast(s, group, "slime-pp_0", [(name, t.unsqueeze(0))], "3")
        rl.check(status == 400 and name in answer["message"] and s.answer() == rl.FIRST, "received, refused", answer)
        s.post("/destroy_weights_update_group", {"group_name": "slime-pp_0"})
        group = join(s, "another")
        status, answer = broadcast(s, group, "another", list(on_gpu(rl.TWO).items()), "4")
        rl.check(status == 200 and s.answer() == rl.WANTED, answer)


def test_one_gpu_for_two_ranks():
    """NCCL refuses it, on both sides: the call fails with its words, and nothing has changed."""
    with distributed_server(0) as s:
        group = join(s, "same")
        answer = []
        body = {"names": ["model.norm.weight"], "dtypes": ["bfloat16"], "shapes": [[256]], "group_name": "same"}
        thread = threading.Thread(target=lambda: answer.append(s.call("POST", "/update_weights_from_distributed", body)))
        thread.start()
        try:
            dist.broadcast(torch.zeros(256, dtype=torch.bfloat16, device="cuda"), 0, group=group)
            rl.check(False, "a control: torch refuses it too")
        except dist.DistBackendError as error:
            rl.check("Duplicate GPU" in str(error) or "invalid usage" in str(error), error)
        thread.join()
        status, text = answer[0]
        rl.check(status >= 400 and "NCCL: " in text["message"], status, text)
        rl.check(s.answer() == rl.FIRST)


if __name__ == "__main__":
    code = rt.main(globals())
    sys.stdout.flush()
    os._exit(code)  # NCCL would wait for ranks that are gone
