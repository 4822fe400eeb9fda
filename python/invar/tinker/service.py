"""The server without HTTP: sessions, models, samplers and their files, one method for each thing that a client asks for."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from tinker import types

from ..llm import LLM
from . import wire
from .errors import ServerError, invalid
from .futures import Future, Futures
from .learner import MANIFEST, read_manifest, spec_of
from .models import BACKWARD, FORWARD, Model, Models
from .options import Options
from .sampling import Sampling
from .sessions import Samplers, Sessions
from .state import EPHEMERAL, INFO, KINDS, Path, Store, check_name, check_ttl, parse_path

log = logging.getLogger("invar.tinker")
LINKS_S = 3600.0  # how long links to files are valid


def when(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)


class Service:
    def __init__(self, options: Options) -> None:
        self.options = options
        self._temporary = None if options.state else tempfile.mkdtemp(prefix="invar-tinker-")
        self.store = Store(options.state or self._temporary or "")
        self.futures = Futures()
        self.base = self._open_llm(options.max_loras)
        info = self.base.info
        self.max_context = min(options.max_context or info.max_model_len, info.max_model_len)
        self.sessions = Sessions(self.store, options.session_timeout)
        self.samplers = Samplers(options, self.store)
        self.sampling = Sampling(options, self.base, lambda: self._open_llm(0), self.futures)
        self.models = Models(options, self.store, self.futures, self.base, self.max_context, self.sessions.lives)
        self._secret = secrets.token_bytes(32)  # signs links to files
        log.info("%s as %s on %s, %s, %d threads, contexts of %d tokens, state in %s", options.model, options.name, info.device, info.arithmetic,
                 info.threads, self.max_context, self.store.folder)  # fmt: skip

    def _open_llm(self, loras: int) -> LLM:
        o = self.options
        more: dict[str, Any] = {"enable_lora": True, "max_loras": loras, "max_lora_rank": o.max_lora_rank} if loras else {"trainable": True}
        return LLM(
            o.model, dtype=o.dtype, arithmetic=o.arithmetic, device=o.device, threads=o.threads, tensor_parallel_size=o.tensor_parallel_size,
            gpu_memory_utilization=o.gpu_memory_utilization, kv_cache_memory_bytes=o.kv_cache_memory_bytes, max_model_len=o.max_context,
            seed=o.seed, **more,
        )  # fmt: skip

    def close(self) -> None:
        self.models.close(keep=self._temporary is None)
        self.sampling.close()
        self.store.close()
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def sweep(self) -> None:
        """Now and then."""
        self.futures.sweep()
        self.store.sweep()

    # ---- models

    def create_model(self, request: types.CreateModelRequest) -> Future:
        self.sessions.touch(request.session_id)
        _check_optimizer(request.optimizer_config)
        spec = spec_of(self.options, request.base_model, request.lora_config)
        if spec.is_lora and not self.options.max_loras:
            raise invalid("lora_config: rank", "0: all weights learn (the server has --max-loras 0)", str(spec.rank))
        model_id = f"{request.session_id}:train:{request.model_seq_id}"
        future, new = self.futures.begin(f"{model_id}:create", model_id)
        if new:
            self._begin(future, lambda: self.models.create(model_id, spec, request.user_metadata, future, self._created))
        return future

    def _created(self, model: Model) -> bytes:
        self.models.open_learner(model)
        return types.CreateModelResponse(model_id=model.id).model_dump_json().encode()

    def _begin(self, future: Future, submit: Callable[[], None]) -> None:
        """A call that is refused leaves no future behind: asked again, it is refused again."""
        try:
            submit()
        except BaseException:
            self.futures.drop(future)
            raise

    def get_info(self, model_id: str) -> types.GetInfoResponse:
        model = self.models.get(model_id)
        data = types.ModelData(arch=self.base.info.model_type, model_name=self.options.name, tokenizer_id=self.options.name)
        return types.GetInfoResponse(type="get_info", model_data=data, model_id=model.id, is_lora=model.spec.is_lora, lora_rank=model.spec.rank or None,
                                     model_name=self.options.name)  # fmt: skip

    def run_pass(self, body: bytes) -> Future:
        model_id, seq, message = wire.read_pass(body)
        return self._operate(model_id, seq, FORWARD if message.forward_only else BACKWARD, message)

    def _operate(self, model_id: str, seq: int | None, kind: str, work: Any) -> Future:
        model = self.models.get(model_id)
        self.sessions.touch(model.session)
        future, new = self.futures.begin(f"{model_id}:{seq if seq is not None else secrets.token_hex(8)}", model_id)
        if new:
            self._begin(future, lambda: self.models.submit(model_id, seq, kind, future, work))
        return future

    def optim_step(self, request: types.OptimStepRequest) -> Future:
        return self._operate(request.model_id, request.seq_id, "optim_step", lambda model: self.models.step(model, request))

    def unload(self, model_id: str) -> Future:
        """Out of memory, after what was sent before."""

        def work(model: Model) -> bytes:
            self.models.unload(model)
            return types.UnloadModelResponse(model_id=model.id, type="unload_model").model_dump_json().encode()

        return self._operate(model_id, None, "unload", work)

    # ---- weights

    def save_weights(self, request: types.SaveWeightsRequest) -> Future:
        def work(model: Model) -> bytes:
            path = Path(model.id, "weights", check_name(request.path or f"step-{model.next_seq - 1:06d}"))
            check_ttl(request.ttl_seconds)
            self._write(model, path, request.overwrite, request.ttl_seconds, request.user_metadata)
            return types.SaveWeightsResponse(path=str(path), type="save_weights").model_dump_json().encode()

        return self._operate(request.model_id, request.seq_id, "save_weights", work)

    def _write(self, model: Model, path: Path, overwrite: bool, ttl: int | None, metadata: dict[str, str] | None) -> None:
        assert model.learner is not None
        begin = time.monotonic()
        folder = self.store.begin(path, overwrite)
        try:
            model.learner.save(folder) if path.kind == "weights" else model.learner.export(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self.store.commit(path, ttl, metadata)
        log.info("%s: saved, %.2f s", path, time.monotonic() - begin)

    def save_for_sampler(self, request: types.SaveWeightsForSamplerRequest) -> Future:
        """With a name a checkpoint, without one a sampling session."""

        def work(model: Model) -> bytes:
            check_ttl(request.ttl_seconds)
            kind = "sampler_weights" if request.path is not None else EPHEMERAL
            path = Path(model.id, kind, check_name(request.path or f"{model.next_seq - 1:08d}"))
            self._write(model, path, request.path is None, request.ttl_seconds, request.user_metadata)
            sampler = None
            if request.path is None:
                seq = request.sampling_session_seq_id
                if seq is None:
                    raise invalid("save_weights_for_sampler", "a path or a sampling_session_seq_id", "neither")
                sampler = self.samplers.create(model.session, seq, ephemeral=path, inflight=request.kind == "inflight")
                self.samplers.forget_old(model.id)
            out = types.SaveWeightsForSamplerResponseInternal(path=None if sampler else str(path), sampling_session_id=sampler, type="save_weights_for_sampler")
            return out.model_dump_json().encode()

        return self._operate(request.model_id, request.seq_id, "save_weights_for_sampler", work)

    def save_external(self, request: types.SaveWeightsExternalRequest) -> Future:
        def work(model: Model) -> bytes:
            if request.age_encryption_recipients:
                raise invalid("age_encryption_recipients", "none", "some", "files are written as they are")
            check_ttl(request.ttl_seconds)
            path = Path(model.id, "external_weights", check_name(request.path or ""))
            self._write(model, path, False, request.ttl_seconds, None)
            out = types.SaveWeightsExternalResponseInternal(path=str(path), size_bytes=(self.store.info(path) or {}).get("size"), type="save_weights_external")
            return out.model_dump_json().encode()

        return self._operate(request.model_id, request.seq_id, "save_weights_external", work)

    def load_weights(self, request: types.LoadWeightsRequest) -> Future:
        """Into a model, or as a new model's first operation."""
        path = parse_path(request.path, ("weights",))
        if request.weights_access_token is not None:
            raise invalid("weights_access_token", "none", "one", "the server has one account")
        if request.optimizer_config is not None:
            _check_optimizer(request.optimizer_config)
        if request.base_model not in (None, self.options.name):
            raise invalid("base_model", self.options.name, str(request.base_model))

        def work(model: Model) -> bytes:
            self.models.load(model, path, request.optimizer)
            return types.LoadWeightsResponse(path=request.path, model_id=model.id, type="load_weights").model_dump_json().encode()

        if request.model_id is not None:
            return self._operate(request.model_id, request.seq_id, "load_weights", work)
        if request.session_id is None or request.model_seq_id is None:
            raise invalid("load_weights", "model_id, or session_id and model_seq_id", "neither")
        self.sessions.touch(request.session_id)
        spec = read_manifest(self.store.find(path))
        model_id = f"{request.session_id}:train:{request.model_seq_id}"
        future, new = self.futures.begin(f"{model_id}:create", model_id)
        if new:
            self._begin(future, lambda: self.models.create(model_id, spec, request.user_metadata, future, work))
        return future

    def copy_weights(self, request: types.CopyWeightsRequest) -> str:
        source = parse_path(request.source_path)
        folder, ttl = self.store.find(source), check_ttl(request.ttl_seconds)
        session = request.session_id or self.sessions.create(types.CreateSessionRequest(
            tags=[], user_metadata=None, sdk_version="", project_id=request.destination_project_id))
        self.sessions.get(session)
        run = f"{session}:train:{request.model_seq_id or 0}"
        path = Path(run, source.kind, source.name)
        info = self.store.info(source) or {}
        made = self.store.begin(path, False)
        shutil.copytree(folder, made, dirs_exist_ok=True)
        self.store.commit(path, ttl, info.get("metadata"))
        self.models.adopt(run, read_manifest(folder))
        return str(path)

    def weights_info(self, tinker_path: str) -> types.WeightsInfoResponse:
        spec = read_manifest(self.store.find(parse_path(tinker_path)))
        flags = {name: getattr(spec, name) for name in ("train_unembed", "train_mlp", "train_attn")} if spec.is_lora else {}
        return types.WeightsInfoResponse(base_model=spec.base_model, is_lora=spec.is_lora, lora_rank=spec.rank or None, **flags)

    def expire(self, path: Path, ttl: int | None) -> None:
        self.store.change(path, expires=None if ttl is None else time.time() + ttl)

    # ---- samplers

    def create_sampler(self, request: types.CreateSamplingSessionRequest) -> str:
        self.sessions.touch(request.session_id)
        return self.samplers.create(request.session_id, request.sampling_session_seq_id, request.model_path, request.base_model)

    def sample(self, request: types.SampleRequest) -> Future:
        if len(self.futures) >= self.options.max_requests:
            raise ServerError(f"requests: wanted at most {self.options.max_requests} in flight (--max-requests): come again", 429)
        if request.sampling_session_id is not None:
            sampler = request.sampling_session_id
            self.sessions.touch(self.samplers.get(sampler)["session"])
            weights = self.samplers.weights(sampler)
            name = f"{sampler}:{request.seq_id}" if request.seq_id is not None else f"{sampler}:{secrets.token_hex(8)}"
        else:
            weights = self.samplers.at(request.model_path, request.base_model)
            name = f"sample:{secrets.token_hex(16)}"
        future, new = self.futures.begin(name)
        if new:
            future.sequence_ids = [f"{name}:{i}" for i in range(request.num_samples)]
            self._begin(future, lambda: self.sampling.submit(request, weights, future))
        return future

    def get_sampler(self, sampler: str) -> types.GetSamplerResponse:
        record = self.samplers.get(sampler)
        return types.GetSamplerResponse(sampler_id=sampler, base_model=self.options.name, model_path=record["path"])

    # ---- runs and checkpoints

    def checkpoint(self, path: Path, info: dict[str, Any]) -> types.Checkpoint:
        return types.Checkpoint(
            checkpoint_id=path.checkpoint_id, checkpoint_type=KINDS[path.kind], time=when(info["time"]), tinker_path=str(path), size_bytes=info["size"],
            public=info["public"], user_metadata=info["metadata"], expires_at=when(info["expires"]),
        )  # fmt: skip

    def run(self, model: Model) -> types.TrainingRun:
        found = self.store.checkpoints(model.id)
        last = {kind: [self.checkpoint(*pair) for pair in found if pair[0].kind == kind][-1:] for kind in KINDS}
        return types.TrainingRun(
            training_run_id=model.id, base_model=model.spec.base_model, model_owner="local", is_lora=model.spec.is_lora, lora_rank=model.spec.rank or None,
            last_request_time=when(model.last_used), last_checkpoint=next(iter(last["weights"]), None),
            last_sampler_checkpoint=next(iter(last["sampler_weights"]), None), user_metadata={key: str(value) for key, value in (model.metadata or {}).items()} or None,
        )  # fmt: skip

    def runs(self, limit: int, offset: int) -> types.TrainingRunsResponse:
        every = sorted(self.models.all(), key=lambda model: -model.last_used)
        shown = [self.run(model) for model in every[offset : offset + limit]]
        return types.TrainingRunsResponse(training_runs=shown, cursor=types.Cursor(offset=offset, limit=limit, total_count=len(every)))

    def checkpoints(self, run: str) -> types.CheckpointsListResponse:
        self.store.read_run(run)
        return types.CheckpointsListResponse(checkpoints=[self.checkpoint(*pair) for pair in self.store.checkpoints(run)])

    def all_checkpoints(self, limit: int, offset: int) -> types.CheckpointsListResponse:
        every = [pair for run in self.store.runs() for pair in self.store.checkpoints(run)]
        every.sort(key=lambda pair: -pair[1]["time"])
        cursor = types.Cursor(offset=offset, limit=limit, total_count=len(every))
        return types.CheckpointsListResponse(checkpoints=[self.checkpoint(*pair) for pair in every[offset : offset + limit]], cursor=cursor)

    # ---- links to files

    def links(self, path: Path, base_url: str) -> types.ExternalWeightsUrlsResponse:
        folder, until = self.store.find(path), int(time.time() + LINKS_S)
        names = [os.path.relpath(os.path.join(at, name), folder) for at, _, files in os.walk(folder) for name in files if name not in (INFO, MANIFEST)]
        urls = {name: f"{base_url}api/v1/files/{path.run}/{path.checkpoint_id}/{name}?until={until}&key={self._sign(path, name, until)}" for name in sorted(names)}
        return types.ExternalWeightsUrlsResponse(urls=urls, expires=when(until))

    def _sign(self, path: Path, name: str, until: int) -> str:
        return hmac.new(self._secret, f"{path}\n{name}\n{until}".encode(), hashlib.sha256).hexdigest()

    def file(self, path: Path, name: str, until: int, key: str) -> str:
        if until < time.time() or not hmac.compare_digest(self._sign(path, name, until), key):
            raise ServerError("link: wanted one of this server that has not expired", 403)
        return os.path.join(self.store.find(path), name)


def _check_optimizer(config: Any) -> None:
    if not isinstance(config, types.AdamOptimizerConfig):
        raise invalid("optimizer_config", "adamw", str(getattr(config, "type", config)))
