"""verl's AsyncHttpServerAdapter, unmodified, against `invar serve`: a step of its hybrid engine (release, resume, buckets of
weights, flush), answers, aborts. SGLang is not installed: the five names that verl's file imports from it are stand-ins. The
messages are those that torch makes (torch_messages.py)."""

import asyncio
import base64
import dataclasses
import importlib.metadata
import importlib.util
import pathlib
import sys
import time
import types

import rl_stacks as rl
import torch_messages as tm
from upstream import TINY_MATH

FILE = "verl/workers/rollout/sglang_rollout/http_server_engine.py"


@dataclasses.dataclass
class ServerArgs:
    model_path: str = ""
    host: str = "127.0.0.1"
    port: int = 30000
    node_rank: int = 0
    trust_remote_code: bool = False


@dataclasses.dataclass
class UpdateWeightsFromTensorReqInput:
    serialized_named_tensors: list
    load_format: str = None
    flush_cache: bool = True


def unused(*_, **__):
    raise AssertionError("verl started or stopped a server")


def adapter_module():
    for name, members in {
        "entrypoints.EngineBase": {"EngineBase": object},
        "entrypoints.http_server": {"launch_server": unused},
        "managers.io_struct": {"UpdateWeightsFromTensorReqInput": UpdateWeightsFromTensorReqInput},
        "server_args": {"ServerArgs": ServerArgs},
        "utils": {"kill_process_tree": unused},
    }.items():
        module = types.ModuleType(f"sglang.srt.{name}")
        vars(module).update(members)
        sys.modules[module.__name__] = module
    path = pathlib.Path(importlib.metadata.distribution("verl").locate_file(FILE))
    spec = importlib.util.spec_from_file_location("http_server_engine", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def request_of(part):
    """sglang/srt/weight_sync/utils.py: a LocalSerializedTensor for each name, serialized again."""
    local = [(name, tm.serialized([t])) for name, t in rl.pairs(part)]
    return UpdateWeightsFromTensorReqInput([base64.b64decode(tm.text(local))])


async def step(s, engine):
    """verl/workers/rollout/sglang_rollout/sglang_rollout.py: release, resume, update_weights."""
    await engine.release_memory_occupation(tags=["kv_cache", "weights"])
    rl.check(s.engine() is None, "the engine's process is gone")
    await engine.resume_memory_occupation(tags=["weights"])
    for part in rl.parts(rl.rows(rl.TWO), 5):
        answer = await engine.update_weights_from_tensor(request_of(part))
        rl.check(answer["success"], answer)
    await engine.resume_memory_occupation(tags=["kv_cache"])
    rl.check((await engine.flush_cache())["success"])
    tm.free_all()
    rl.check(s.answer() == rl.WANTED, s.answer())


async def answers(s, engine):
    rl.check((await engine.available_models())["data"][0]["id"] == "tiny-math")
    sampling = {"max_new_tokens": 24, "temperature": 1.0, "top_k": -1, "top_p": 1.0, "repetition_penalty": 1.0, "sampling_seed": 7,
                "ignore_eos": True}
    prompts = [[10 + i, 20, 30] for i in range(8)]
    alone = [await engine.generate(input_ids=p, sampling_params=sampling, return_logprob=True) for p in prompts]
    batch = await asyncio.gather(*(engine.async_generate(input_ids=p, sampling_params=sampling, return_logprob=True) for p in prompts))
    for a, b in zip(alone, batch, strict=True):
        rl.check(a["meta_info"]["output_token_logprobs"] == b["meta_info"]["output_token_logprobs"] and a["invar"] == b["invar"])
        rl.check(len(a["output_ids"]) == 24)
    long = asyncio.create_task(engine.generate(input_ids=[1, 2], sampling_params=sampling | {"max_new_tokens": 1900}))
    end = time.monotonic() + 30
    while s.call("GET", "/v1/loads")[1]["loads"][0]["num_running_reqs"] == 0 and time.monotonic() < end:
        await asyncio.sleep(0.001)
    await engine.abort_request(abort_all=True)
    reason = (await long)["meta_info"]["finish_reason"]["type"]
    rl.check(reason == "abort", reason)


def main():
    module = adapter_module()
    with rl.serving(TINY_MATH) as s:
        engine = module.AsyncHttpServerAdapter(model_path="tiny-math", host="127.0.0.1", port=s.port, launch_server=False)
        asyncio.run(answers(s, engine))
        asyncio.run(step(s, engine))
        asyncio.run(answers(s, engine))
    print(f"verl {importlib.metadata.version('verl')}: {rl.checks} checks")


if __name__ == "__main__":
    try:
        main()
    finally:
        tm.free_all()
        rl.scratch.cleanup()
