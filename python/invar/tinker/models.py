"""Models that learn. Requests of a model are carried out in the client's order, by their seq_id; models take turns, an
operation each, so that none waits for another longer than a step. One thread learns."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tinker import types

from ..trainer import Sequence
from . import wire
from .errors import ServerError, as_server_error, invalid
from .futures import Future, Futures
from .learner import Learner, Spec, Update, read_manifest
from .options import Options
from .passes import Prepared, prepare, sequences
from .state import Path, Store

if TYPE_CHECKING:
    from ..llm import LLM

log = logging.getLogger("invar.tinker")
GAP_S = 300.0  # a request whose predecessor does not come for so long fails

FORWARD, BACKWARD = "forward", "forward_backward"


@dataclass
class Op:
    kind: str
    future: Future
    work: Any  # the message of a pass; a function of the model for all else
    arrived: float = field(default_factory=time.monotonic)


@dataclass
class Model:
    """pending: sequences with coefficients since the last optimizer step; gradients_wait: those of all of them are in
    the trainer."""

    id: str
    spec: Spec
    created: float
    metadata: dict[str, Any] | None = None
    learner: Learner | None = None
    queue: dict[int, Op] = field(default_factory=dict)
    next_seq: int = 1
    last_used: float = field(default_factory=time.time)
    pending: list[Sequence] = field(default_factory=list)
    gradients_wait: bool = False
    changed: bool = False  # since it was saved whole
    parked: bool = False  # it has left memory and its state is on disk

    @property
    def session(self) -> str:
        return self.id.split(":")[0]

    def record(self) -> dict[str, Any]:
        return {"id": self.id, "spec": asdict(self.spec), "created": self.created, "metadata": self.metadata,
                "last_used": self.last_used, "next_seq": self.next_seq, "parked": self.parked}  # fmt: skip


class Models:
    def __init__(self, options: Options, store: Store, futures: Futures, base: LLM, max_context: int, lives: Callable[[str], bool]) -> None:
        """lives: is this session's client still there?"""
        self.options, self.store, self.futures, self.base, self.max_context = options, store, futures, base, max_context
        self._lives = lives
        self._all: dict[str, Model] = {}
        self._turn = threading.Condition()
        self._order: list[str] = []  # the next model to serve first
        self._closing = False
        self.seconds = 0.0  # in passes and steps
        for run in store.runs():
            record = store.read_run(run)
            self._all[run] = Model(run, Spec(**record["spec"]), record["created"], record["metadata"], next_seq=record["next_seq"],
                                   last_used=record["last_used"], parked=record["parked"])  # fmt: skip
        self._order = list(self._all)
        self._thread = threading.Thread(target=self._run, name="invar-learner", daemon=True)
        self._thread.start()

    # ---- the loop's side

    def get(self, model_id: str) -> Model:
        with self._turn:
            found = self._all.get(model_id)
        if found is None:
            raise ServerError(f"model_id: wanted a model of this server, found {model_id}", 404)
        return found

    def of_session(self, session: str) -> list[str]:
        with self._turn:
            return [name for name, model in self._all.items() if model.session == session]

    def all(self) -> list[Model]:
        with self._turn:
            return list(self._all.values())

    def create(self, model_id: str, spec: Spec, metadata: dict[str, Any] | None, future: Future, begin: Callable[[Model], bytes]) -> None:
        """A new model whose first operation, before seq_id 1, is `begin`."""
        model = Model(model_id, spec, time.time(), metadata, next_seq=0)
        with self._turn:
            if model_id in self._all:
                raise ServerError(f"model_seq_id: wanted a new one, found that of {model_id}")
            self._all[model_id] = model
            self._order.append(model_id)
        self.submit(model_id, 0, "create", future, begin)

    def adopt(self, model_id: str, spec: Spec) -> None:
        """A run of copied checkpoints, which does not learn."""
        model = Model(model_id, spec, time.time())
        with self._turn:
            if model_id not in self._all:
                self._all[model_id] = model
                self._order.append(model_id)
                self.store.write_run(model_id, model.record())

    def submit(self, model_id: str, seq: int | None, kind: str, future: Future, work: Any) -> None:
        model = self.get(model_id)
        with self._turn:
            if seq is None:
                seq = max(model.queue, default=model.next_seq - 1) + 1
            if seq < model.next_seq or seq in model.queue:
                raise ServerError(f"seq_id: wanted {model.next_seq} or more, found {seq}: it was carried out, and its result is gone", 410)
            model.queue[seq] = Op(kind, future, work)
            model.last_used = time.time()
            self._turn.notify_all()

    def skip(self, model_id: str, seq: int | None) -> None:
        """A request that was refused before it became an operation still has its place in the order."""
        with self._turn:
            model = self._all.get(model_id)
            if model is not None and seq is not None and seq >= model.next_seq and seq not in model.queue:
                model.queue[seq] = Op("skip", Future(""), None)
                self._turn.notify_all()

    def close(self, keep: bool) -> None:
        """Ends after the operation that runs. keep: open models are saved, and are there again after a restart."""
        with self._turn:
            self._closing = True
            self._turn.notify_all()
        self._thread.join()
        for model in self.all():
            if model.learner is not None:
                if keep:
                    self._park(model)
                else:
                    model.learner.close()

    # ---- the learner's thread

    def _run(self) -> None:
        while True:
            with self._turn:
                while not self._closing and (taken := self._take()) is None:
                    self._turn.wait(timeout=5.0)
                    self._fail_gaps()
                if self._closing:
                    break
            model, ops = taken
            begin = time.monotonic()
            try:
                self._carry_out(model, ops)
            except BaseException as error:
                self._failed(model, ops, error)
            if ops[0].kind in (FORWARD, BACKWARD, "optim_step"):
                self.seconds += time.monotonic() - begin
        error = ServerError("the server ends: send the request again when it is there", 503)
        for model in self.all():
            for op in model.queue.values():
                self.futures.fail(op.future, error)

    def _take(self) -> tuple[Model, list[Op]] | None:
        """The next operation of the next model in turn; consecutive passes of one kind go together."""
        for at, name in enumerate(self._order):
            model = self._all[name]
            while model.next_seq in model.queue and model.queue[model.next_seq].kind == "skip":
                del model.queue[model.next_seq]
                model.next_seq += 1
            if model.next_seq not in model.queue:
                continue
            ops = [model.queue.pop(model.next_seq)]
            model.next_seq += 1
            while ops[0].kind in (FORWARD, BACKWARD) and model.next_seq in model.queue and model.queue[model.next_seq].kind == ops[0].kind:
                ops.append(model.queue.pop(model.next_seq))
                model.next_seq += 1
            self._order = self._order[at + 1 :] + self._order[: at + 1]
            return model, ops
        return None

    def _fail_gaps(self) -> None:
        for model in self._all.values():
            late = min((op.arrived for op in model.queue.values()), default=None)
            if late is not None and time.monotonic() - late > GAP_S and model.next_seq not in model.queue:
                missing, model.next_seq = model.next_seq, min(model.queue)
                log.warning("%s: seq_id %d did not come for %g s: it is passed over", model.id, missing, GAP_S)

    def _failed(self, model: Model, ops: list[Op], error: BaseException) -> None:
        shown = as_server_error(error)
        if shown.status >= 500:
            log.error("%s: %s failed", model.id, ops[0].kind, exc_info=error)
        else:
            log.info("%s: %s refused: %s", model.id, ops[0].kind, shown)
        for op in ops:
            self.futures.fail(op.future, shown)
        if ops[0].kind == "create":
            with self._turn:
                for op in model.queue.values():
                    self.futures.fail(op.future, ServerError(f"{model.id}: its creation failed: {shown}"))
                self._all.pop(model.id, None)
                self._order.remove(model.id)

    def _carry_out(self, model: Model, ops: list[Op]) -> None:
        if ops[0].kind == "create":
            self._make_room()
            self.futures.resolve(ops[0].future, ops[0].work(model))
            self.store.write_run(model.id, model.record())
            return
        self._open(model)
        if ops[0].kind in (FORWARD, BACKWARD):
            self._passes(model, ops)
        else:
            self.futures.resolve(ops[0].future, ops[0].work(model))

    # ---- memory

    def open_learner(self, model: Model) -> Learner:
        model.learner = Learner(self.options, model.spec, self.base, self.max_context)
        log.info("%s: opened, %s, %.1f MB", model.id, f"rank {model.spec.rank}" if model.spec.is_lora else "all weights", model.learner.memory_bytes / 1e6)
        return model.learner

    def _open(self, model: Model) -> None:
        """A model that left memory comes back."""
        if model.learner is not None:
            return
        if not model.parked:
            raise ServerError(f"{model.id}: wanted an open model, found one whose last state was lost when the server ended: create a training "
                              "client from its last checkpoint", 410)  # fmt: skip
        self._make_room()
        learner = self.open_learner(model)
        try:
            learner.load(os.path.join(self.store.run_folder(model.id), "parked"), True)
        except BaseException:
            learner.close()
            model.learner = None
            raise

    def _make_room(self) -> None:
        """Parks models whose clients are gone, the one that was used longest ago first."""
        opened = [m for m in self.all() if m.learner is not None]
        if len(opened) < self.options.max_models:
            return
        idle = sorted((m for m in opened if not m.queue and not self._lives(m.session)), key=lambda m: m.last_used)
        if not idle:
            raise ServerError(f"models: wanted at most {self.options.max_models} open (--max-models), found as many whose clients live: close one "
                              "of their service clients", 400)  # fmt: skip
        self._park(idle[0])

    def unload(self, model: Model) -> None:
        self._park(model)

    def _park(self, model: Model) -> None:
        assert model.learner is not None
        folder = os.path.join(self.store.run_folder(model.id), "parked")
        if model.changed or not model.parked:
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
            model.learner.save(folder)
        model.parked, model.changed = True, False
        model.pending, model.gradients_wait = [], False
        self.store.write_run(model.id, model.record())
        model.learner.close()
        model.learner = None
        log.info("%s: left memory, %s", model.id, folder)

    # ---- operations

    def _passes(self, model: Model, ops: list[Op]) -> None:
        """Requests that are wrong fail alone."""
        begin = time.monotonic()
        good: list[tuple[Op, Prepared]] = []
        for op in ops:
            try:
                given = wire.read_data(op.work, self.options.max_data)
                assert model.learner is not None
                good.append((op, prepare(given, self.options, model.learner.longest)))
            except (ServerError, ValueError) as error:
                self._failed(model, [op], error)
        groups = [good] if good else []
        while groups:
            group = groups.pop(0)
            try:
                self._learn(model, group[0][0].kind, [p for _, p in group])
            except Exception as error:
                if len(group) > 1:
                    groups = [[one] for one in group] + groups
                else:
                    self._failed(model, [group[0][0]], error)
                continue
            for op, p in group:
                self.futures.resolve(op.future, p.output(), wire.PROTOBUF)
            tokens, count = sum(p.tokens for _, p in group), sum(len(p.columns) for _, p in group)
            log.info("%s: %s of %d sequences, %d tokens, loss %.6g a token, %.2f s", model.id, group[0][0].kind.replace("_", " and "), count,
                     tokens, sum(p.loss() for _, p in group) / tokens, time.monotonic() - begin)  # fmt: skip

    def _learn(self, model: Model, kind: str, requests: list[Prepared]) -> None:
        """The gradients of several requests until the optimizer's step are those of one batch with all of them, in every
        bit: a second request's wait for the step, unless it was there with the first."""
        learner, columns, new = model.learner, [c for p in requests for c in p.all()], sequences(requests)
        assert learner is not None
        if kind == FORWARD or model.pending:
            learner.score(new)
            for column in columns:
                column.weigh()
            if kind == BACKWARD:
                model.pending, model.gradients_wait = model.pending + new, False
            return
        learner.gradients(new, lambda i, _: columns[i].weigh())
        model.pending, model.gradients_wait = new, True

    def step(self, model: Model, request: types.OptimStepRequest) -> bytes:
        params = request.optim_params
        if not isinstance(params, types.AdamParams):
            raise invalid("optim_params", "AdamParams", getattr(params, "type", type(params).__name__))
        if not model.pending:
            raise ServerError("optim_step: wanted forward_backward before it, found no gradients")
        learner = model.learner
        assert learner is not None
        begin = time.monotonic()
        if not model.gradients_wait:
            learner.gradients(model.pending)
            model.gradients_wait = True
        norm = learner.apply(Update(params.learning_rate, (params.beta1, params.beta2), params.eps, params.weight_decay, params.grad_clip_norm))
        model.pending, model.gradients_wait = [], False
        self._changed(model)
        log.info("%s: step %d, rate %g, norm %.6g, weights %s, %.2f s", model.id, learner.steps, params.learning_rate, norm, learner.weights_hash[:16],
                 time.monotonic() - begin)  # fmt: skip
        metrics = {"grad_norm": norm, "step": float(learner.steps)}
        return types.OptimStepResponse(metrics=metrics).model_dump_json().encode()

    def load(self, model: Model, path: Path, optimizer: bool) -> None:
        """A checkpoint's weights: of the same kind of model, which may have another seed or rank."""
        folder = self.store.find(path)
        spec = read_manifest(folder)
        if spec.base_model != self.options.name:
            raise invalid(f"{path}: base model", self.options.name, spec.base_model)
        before, old = model.learner, model.spec
        model.spec = spec
        try:
            learner = self.open_learner(model)
            learner.load(folder, optimizer)
        except BaseException:
            if model.learner is not before and model.learner is not None:
                model.learner.close()
            model.learner, model.spec = before, old
            raise
        if before is not None:
            before.close()
        model.pending, model.gradients_wait = [], False
        self._changed(model)
        self.store.write_run(model.id, model.record())

    def _changed(self, model: Model) -> None:
        """What was parked is not its state any more."""
        model.changed = True
        if model.parked:
            model.parked = False
            self.store.write_run(model.id, model.record())
