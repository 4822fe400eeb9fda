"""Trainer: the library's trainer, whose log-probabilities are the engine's in every bit (docs/TRAINING.md)."""

from __future__ import annotations

import glob
import json
import math
import os
import struct
import threading
from collections.abc import Callable, Mapping, Sequence as Items
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _check
from ._engine import struct_values
from ._errors import InvarError, Status
from ._library import Handle, c_string, check, ffi, lib, new_error, path_bytes, take_text, text_of, to_json
from ._model import find_model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .llm import LLM
    from .policy import Policy, PolicyReport, PolicySequence


@dataclass
class Sequence:
    """Token ids, and a mask that weighs the prediction of each from those before it; mask[0] is 0. None: 1 for every
    other token. A call of the trainer writes `logprobs`; `coefficients` are minus the derivative of denominator * loss
    by them. targets: ids that are predicted instead of `ids`, each from the same ids before it; None: those. Lists become numpy arrays."""

    ids: Any
    mask: Any = None
    coefficients: Any = None
    logprobs: Any = None
    targets: Any = None

    def prepare(self, what: str) -> None:
        import numpy as np

        if type(self.ids) is not np.ndarray or self.ids.dtype != np.int32 or self.ids.ndim != 1:
            self.ids = np.asarray(_check.token_ids(self.ids, f"{what}: ids"), np.int32)
        if self.ids.size and self.ids.min() < 0:
            raise InvarError(Status.INVALID, f"{what}: ids: wanted 0 or more, found {self.ids.min()}")
        self.ids = np.ascontiguousarray(self.ids, np.int32)
        count = len(self.ids)
        if self.targets is not None:
            given = self.targets
            if type(given) is not np.ndarray or given.dtype != np.int32 or given.ndim != 1:
                given = np.asarray(_check.integers(given, f"{what}: targets", -_check.INT32_MAX), np.int32)
            if len(given) != count:
                raise InvarError(Status.INVALID, f"{what}: targets: wanted {count} ids, found {len(given)}")
            self.targets = np.ascontiguousarray(given)
        if self.mask is None:
            self.mask = np.ones(count, np.float32)
            self.mask[:1] = 0
        self.mask = _check.floats(self.mask, count, f"{what}: mask")
        if self.coefficients is not None:
            self.coefficients = written(_check.floats(self.coefficients, count, f"{what}: coefficients"))
        if self.logprobs is None:
            self.logprobs = np.zeros(count, np.float32)
        self.logprobs = written(_check.floats(self.logprobs, count, f"{what}: logprobs", finite=False))


def written(row: NDArray[np.float32]) -> NDArray[np.float32]:
    """A row that the library may write: a copy of one that is read-only."""
    return row if row.flags.writeable else row.copy()


@dataclass(frozen=True)
class TrainerMetrics:
    """Of the last step. Seconds are wall time."""

    steps: int  # of the optimizer, in all
    weights_hash: str  # SHA-256 of the float32 weights
    loss: float  # mean of -logprob over the tokens with a mask, weighted by it
    gradient_norm: float  # of the mean gradient, before clipping
    learning_rate: float
    sequences: int
    tokens: int
    tokens_learned: int
    passes: int
    gradient_seconds: float
    reduce_seconds: float
    optimizer_seconds: float
    write_seconds: float


@dataclass(frozen=True)
class TrainerInfo:
    """Facts of an open trainer."""

    fingerprint: str  # of the run: initial weights, every option that may change a bit, the law
    initial_weights: str
    hyperparameters: str  # JSON
    model_type: str
    dtype: str
    device: str
    arithmetic: str
    isa: str
    numerics_version: int
    training_version: int
    elements: int
    memory_bytes: int
    threads: int
    data_parallel: int
    tensor_parallel: int
    virtual_ranks: int
    pass_tokens: int
    vocab_size: int
    max_positions: int


def sequences_of(batch: Any, what: str = "batch", kind: type = Sequence) -> list[Any]:
    if isinstance(batch, kind):
        _check.wrong(what, f"a list of {kind.__name__}", batch, "put it in a list")
    items = _check.listing(batch, what, f"a list of {kind.__name__}")
    for i, item in enumerate(items):
        _check.instance(item, f"{what}[{i}]", kind)
    return items


class _Batch:
    """A batch as the library reads it, and its weigh function."""

    def __init__(self, sequences: Items[Sequence], temperature: float, supervised: bool, policy: bool = False) -> None:
        self.sequences, self._keep = sequences_of(sequences), []  # type: list[Sequence], list[Any]
        self._items = ffi.new("iv_trainer_sequence[]", len(self.sequences))
        for i, (s, c) in enumerate(zip(self.sequences, self._items)):
            s.prepare(f"sequence {i}")
            c.ids, c.count = self._buffer("int32_t[]", s.ids), len(s.ids)
            c.mask, c.logprobs = self._buffer("float[]", s.mask), self._buffer("float[]", s.logprobs, True)
            if s.coefficients is not None and not supervised:
                c.coefficients = self._buffer("float[]", s.coefficients)
        self.c = ffi.new("iv_trainer_batch *")
        lib().iv_trainer_batch_init_sized(self.c, ffi.sizeof("iv_trainer_batch"))
        self.c.sequences, self.c.count = self._items, len(self.sequences)
        if any(s.targets is not None for s in self.sequences):
            rows = ffi.new("int32_t *[]", [ffi.NULL if s.targets is None else self._buffer("int32_t[]", s.targets) for s in self.sequences])
            self._keep.append(rows)
            self.c.targets = rows
        self.c.temperature, self.c.policy = _check.number(temperature, "temperature", 0), policy
        self._raised: BaseException | None = None

    def _buffer(self, kind: str, array: Any, writable: bool = False) -> Any:
        self._keep += [array, ffi.from_buffer(kind, array, require_writable=writable)]
        return self._keep[-1]

    def weigh_by(self, weigh: Callable[[int, Any], int]) -> None:
        """weigh(i, err) gives a status; an exception ends the call and is raised by check()."""

        def call(_user: Any, i: int, err: Any) -> int:
            try:
                return weigh(i, err)
            except BaseException as error:
                self._raised = error
                err.status, err.message = Status.INVALID, f"weigh: {error}".encode()[:900]
                return Status.INVALID

        self._keep.append(ffi.callback("iv_status(void *, size_t, iv_error *)", call, error=int(Status.INVALID)))
        self.c.weigh = self._keep[-1]

    def check(self, status: int, err: Any) -> None:
        if status and self._raised is not None:
            raise self._raised
        check(status, err)


def targets_of(targets: str | Items[str]) -> str:
    """As the library reads them: names between commas, or one expression."""
    if isinstance(targets, str):
        return targets
    names = _check.listing(targets, "lora_targets", "names")
    return ",".join(_check.text(name, f"lora_targets[{i}]") for i, name in enumerate(names))


def released_after(close: Callable[[Any], None], held: Handle) -> Callable[[Any], None]:
    def both(pointer: Any) -> None:
        close(pointer)
        held.release()

    return both


def step_numbers(learning_rate: Any, max_norm: Any) -> tuple[float, float]:
    return _check.number(learning_rate, "learning_rate", 0), _check.number(max_norm, "max_norm", 0)


class Trainer:
    """A model whose weights learn. Calls of several threads run one after another. It cannot be used after a fork.
    Nothing but the weights, the batches in their order, and the first group of options decides the weights."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        dtype: str = "auto",
        arithmetic: str = "auto",
        virtual_ranks: int = 8,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decay_all: bool = False,
        run: dict[str, Any] | None = None,
        load_format: str = "auto",
        dummy_seed: int = 0,
        lora_rank: int = 0,
        lora_alpha: float = 0.0,
        lora_targets: str | Items[str] | None = None,
        lora_rslora: bool = False,
        lora_seed: int = 0,
        lora: str | os.PathLike[str] | None = None,
        # These never change a bit.
        base: LLM | None = None,
        optimizer: bool = True,
        device: str = "auto",
        isa: str = "auto",
        threads: int = 0,
        data_parallel_size: int = 1,
        tensor_parallel_size: int = 1,
        pass_tokens: int = 0,
        micro_batch: int = 0,
        recompute: str = "none",
        offload_optimizer: bool = False,
    ) -> None:
        """run: all else that decides the weights (data, seed, schedule): part of the fingerprint, so that another
        run's checkpoint is refused. optimizer=False: log-probabilities and gradients alone, a reference model.
        lora_rank: an adapter of this rank learns, and the model's weights do not; or `lora`, a PEFT directory to begin
        with. lora_alpha 0: the rank. lora_targets: names of modules, "all-linear" (the default), or an expression, as
        PEFT's target_modules. base: an open LLM of this model, whose weights are read
        instead of a copy, on its device."""
        o, out, err = ffi.new("iv_trainer_options *"), ffi.new("iv_trainer **"), new_error()
        lib().iv_trainer_options_init_sized(o, ffi.sizeof("iv_trainer_options"))
        self.model = find_model(model)
        texts = {"load_format": load_format, "dtype": str(dtype).removeprefix("torch."), "arithmetic": arithmetic}
        texts |= {"isa": isa, "recompute": recompute, "device": device}
        if run is not None and not isinstance(run, Mapping):
            _check.wrong("run", "a dict", run)
        keep = [ffi.new("char[]", path_bytes(self.model)), ffi.new("char[]", to_json(run or {}, "run"))]
        o.model, o.run = keep
        for name, text in texts.items():
            keep.append(c_string(text, name))
            setattr(o, name, keep[-1])
        pair = _check.listing(betas, "betas", "two numbers")
        if len(pair) != 2:
            _check.wrong("betas", "two numbers", betas)
        o.beta1, o.beta2 = (_check.number(beta, f"betas[{i}]", 0, 1) for i, beta in enumerate(pair))
        o.eps, o.weight_decay = _check.number(eps, "eps", 0), _check.number(weight_decay, "weight_decay", 0)
        o.no_optimizer, o.decay_all = not _check.flag(optimizer, "optimizer"), _check.flag(decay_all, "decay_all")
        o.offload_optimizer = _check.flag(offload_optimizer, "offload_optimizer")
        o.lora_alpha, o.lora_rslora = float(_check.number(lora_alpha, "lora_alpha")), _check.flag(lora_rslora, "lora_rslora")
        if lora_targets is not None:
            keep.append(c_string(targets_of(lora_targets), "lora_targets"))
            o.lora_targets = keep[-1]
        if lora is not None:
            keep.append(ffi.new("char[]", path_bytes(lora, "lora")))
            o.lora = keep[-1]
        sizes = {"dummy_seed": dummy_seed, "lora_rank": lora_rank, "lora_seed": lora_seed}
        sizes |= {"virtual_ranks": virtual_ranks, "threads": threads, "pass_tokens": pass_tokens}
        sizes |= {"micro_batch": micro_batch, "data_parallel": data_parallel_size, "tensor_parallel": tensor_parallel_size}
        for name, size in sizes.items():
            setattr(o, name, _check.integer(size, name, 0, _check.SIZE_MAX))
        close: Callable[[Any], None] = lib().iv_trainer_close
        if base is not None:
            from .llm import LLM

            _check.instance(base, "base", LLM)
            held = base._engine.handle
            o.base = held.pointer
            close = released_after(close, held)
        check(lib().iv_trainer_open(o, out, err), err)
        if base is not None:
            held.hold()
        self._handle = Handle(out[0], close, "trainer")
        self._lock = threading.RLock()
        self.restore_notes = ""

    # ---- life and facts

    def close(self) -> None:
        with self._lock:
            self._handle.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def info(self) -> TrainerInfo:
        info = ffi.new("iv_trainer_info *")
        lib().iv_trainer_get_info(self._handle.pointer, info)
        return TrainerInfo(**struct_values(info, TrainerInfo))

    @property
    def fingerprint(self) -> str:
        return self.info.fingerprint

    @property
    def metrics(self) -> TrainerMetrics:
        metrics = ffi.new("iv_trainer_metrics *")
        lib().iv_trainer_get_metrics(self._handle.pointer, metrics)
        hashed = text_of(metrics.weights_hash)
        names = [name for name in TrainerMetrics.__annotations__ if name != "weights_hash"]
        return TrainerMetrics(weights_hash=hashed, **{name: getattr(metrics, name) for name in names})

    @property
    def weights_hash(self) -> str:
        return self.metrics.weights_hash

    # ---- steps

    def step(
        self, batch: Items[Sequence], learning_rate: float, max_norm: float = 0.0, temperature: float = 1.0
    ) -> TrainerMetrics:
        """One supervised step of AdamW: the mean of -logprob, weighted by the masks. max_norm: a larger gradient is
        scaled down to it; 0: none is."""
        with self._lock:
            learning_rate, max_norm = step_numbers(learning_rate, max_norm)
            b, err = _Batch(batch, temperature, True), new_error()
            check(lib().iv_trainer_step(self._handle.pointer, b.c, learning_rate, max_norm, err), err)
            return self.metrics

    def score(
        self, batch: Items[Sequence], temperature: float = 1.0, policy: bool = False
    ) -> list[NDArray[np.float32]]:
        """Log-probabilities under the present weights, as each sequence's `logprobs` too. policy: of what an LLM draws,
        which has no ids without a token, as sampling_logprobs are; else over all ids, as logprobs are."""
        with self._lock:
            b, err = _Batch(batch, temperature, True, policy), new_error()
            check(lib().iv_trainer_score(self._handle.pointer, b.c, err), err)
            return [s.logprobs for s in b.sequences]

    def gradients(
        self,
        batch: Items[Sequence],
        denominator: float,
        temperature: float = 1.0,
        weigh: Callable[[int, Sequence], None] | None = None,
        policy: bool = False,
    ) -> list[NDArray[np.float32]]:
        """Log-probabilities (policy: as of score), and the gradient of the loss, which waits for apply(). weigh(i, sequence) fills the
        sequence's coefficients in place from its log-probabilities, between forward and backward; it is called from
        several threads, in any order."""
        import numpy as np

        denominator = _check.number(denominator, "denominator", 0)
        if weigh is not None and not callable(weigh):
            _check.wrong("weigh", "a function", weigh)
        with self._lock:
            batch = sequences_of(batch)
            if weigh is not None:
                for i, s in enumerate(batch):
                    s.prepare(f"sequence {i}")
                    if s.coefficients is None:
                        s.coefficients = np.zeros(len(s.ids), np.float32)
            b, err = _Batch(batch, temperature, False, policy), new_error()
            if weigh is not None:
                chosen = weigh

                def call(i: int, _err: Any) -> int:
                    s = b.sequences[i]
                    array = s.coefficients
                    chosen(i, s)
                    if s.coefficients is not array:
                        given, s.coefficients = s.coefficients, array
                        array[:] = _check.floats(given, len(array), f"weigh: sequence {i}: coefficients")
                    return 0

                b.weigh_by(call)
            b.check(lib().iv_trainer_gradients(self._handle.pointer, b.c, denominator, err), err)
            return [s.logprobs for s in b.sequences]

    def apply(self, learning_rate: float, max_norm: float = 0.0) -> TrainerMetrics:
        """One step of AdamW by the gradients that wait."""
        with self._lock:
            learning_rate, max_norm = step_numbers(learning_rate, max_norm)
            err = new_error()
            check(lib().iv_trainer_apply(self._handle.pointer, learning_rate, max_norm, err), err)
            return self.metrics

    def set_adamw(self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0) -> None:
        """AdamW's numbers from the next step on. They are no part of the fingerprint, as the learning rate is none."""
        with self._lock:
            err = new_error()
            check(lib().iv_trainer_set_adamw(self._handle.pointer, *betas, eps, weight_decay, err), err)

    def forget(self) -> None:
        """A fresh optimizer on the present weights: no moments, step 0, no gradients that wait."""
        with self._lock:
            err = new_error()
            check(lib().iv_trainer_forget(self._handle.pointer, err), err)

    def policy_step(
        self,
        policy: Policy,
        sequences: Items[PolicySequence],
        learning_rate: float,
        max_norm: float = 0.0,
        temperature: float = 1.0,
        sample_all_ids: bool = False,
    ) -> PolicyReport:
        """One step of an algorithm on sampled sequences. report.equal == report.tokens: the learner is the sampler in
        every bit. sample_all_ids: as of the LLM that sampled them."""
        from .policy import Policy, PolicyBatch, over_drawn_ids

        learning_rate, max_norm = step_numbers(learning_rate, max_norm)
        _check.instance(policy, "policy", Policy)
        with self._lock:
            given = PolicyBatch(policy, sequences)
            drawn = over_drawn_ids(given.sequences, temperature) and not sample_all_ids
            b, err = _Batch([s.sequence for s in given.sequences], temperature, False, drawn), new_error()
            b.weigh_by(given.weigh)
            status = lib().iv_trainer_gradients(self._handle.pointer, b.c, given.denominator(), err)
            b.check(status, err)
            report = given.coefficients()
            self.apply(learning_rate, max_norm)
            return report

    def gradient(self, tensor: str, shape: tuple[int, ...] | None = None) -> NDArray[np.float32]:
        """The gradient of the mean loss, before clipping, of a tensor by its name in the checkpoint. shape: None reads
        it there; of an adapter's tensor, by its name in PEFT's file, it is given."""
        import numpy as np

        tensor = _check.text(tensor, "tensor")
        if shape is not None:
            shape = tuple(_check.integers(shape, "shape", 0, _check.SIZE_MAX))
            if math.prod(shape) > self.info.elements:
                raise InvarError(Status.INVALID, f"shape: wanted at most the model's {self.info.elements} elements, found {shape}")
        with self._lock:
            out, err = np.empty(self._shape(tensor) if shape is None else shape, np.float32), new_error()
            data = ffi.from_buffer("float[]", out, require_writable=True)
            name = c_string(tensor, "tensor")
            check(lib().iv_trainer_get_gradient(self._handle.pointer, name, data, out.size, err), err)
            return out

    def _shape(self, tensor: str) -> tuple[int, ...]:
        for path in sorted(glob.glob(os.path.join(glob.escape(self.model), "*.safetensors"))):
            try:
                with open(path, "rb") as file:
                    header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            except (OSError, ValueError, struct.error) as error:
                raise InvarError(Status.IO, f"{path}: the shape of {tensor} cannot be read ({error}); give shape=") from None
            if tensor in header:
                return tuple(header[tensor]["shape"])
        raise InvarError(Status.NOT_FOUND, f"{self.model}: wanted the tensor {tensor}, found none")

    # ---- weights

    def sync(self, llm: LLM, digest: bool = False) -> None:
        """Copies the weights into an LLM of this process, opened with trainable=True and this dtype and arithmetic.
        digest: its fingerprint and receipts name the new weights. AsyncLLM: `await llm.sync(trainer)`."""
        from .async_llm import AsyncLLM
        from .llm import LLM

        hint = "`await llm.sync(trainer)` is the call of an AsyncLLM" if isinstance(llm, AsyncLLM) else ""
        _check.instance(llm, "llm", LLM, hint)
        with self._lock, llm._lock:
            self._sync(llm._engine, digest)

    def _sync(self, engine: Any, digest: bool) -> None:
        digest, err = _check.flag(digest, "digest"), new_error()
        check(lib().iv_trainer_sync_engine(self._handle.pointer, engine.handle.pointer, digest, err), err)
        engine.read_info()

    def sync_adapter(self, llm: LLM, name: str) -> str:
        """The present adapter becomes the LLM's adapter `name`, without a file, in place of one of that name: requests
        that run keep the old one. The LLM has this model and room for adapters (max_loras). Its digest."""
        from .llm import LLM

        _check.instance(llm, "llm", LLM)
        with self._lock, llm._lock:
            return self._sync_adapter(llm._engine, name)

    def _sync_adapter(self, engine: Any, name: str) -> str:
        info, err, text = ffi.new("iv_adapter_info *"), new_error(), c_string(name, "name")
        info.size = ffi.sizeof("iv_adapter_info")
        check(lib().iv_trainer_sync_adapter(self._handle.pointer, engine.handle.pointer, text, info, err), err)
        return text_of(info.digest)

    def save(self, path: str | os.PathLike[str], keep: int = 0, state: dict[str, Any] | None = None) -> None:
        """A checkpoint path/checkpoint-NNNNNN, whole or absent. keep: how many stay, newest first; 0: all."""
        keep = _check.integer(keep, "keep", 0, _check.INT32_MAX)
        if state is not None and not isinstance(state, Mapping):
            _check.wrong("state", "a dict", state)
        with self._lock:
            err = new_error()
            text = to_json(state or {}, "state")
            check(lib().iv_trainer_save(self._handle.pointer, path_bytes(path), keep, text, err), err)

    def restore(self, path: str | os.PathLike[str]) -> dict[str, Any] | None:
        """Continues from the newest whole checkpoint. Its state, or None if there is none. restore_notes then names
        it, and damaged ones."""
        with self._lock:
            found, err = ffi.new("bool *"), new_error()
            state, notes = ffi.new("iv_text *"), ffi.new("iv_text *")
            status = lib().iv_trainer_restore(self._handle.pointer, path_bytes(path), found, state, notes, err)
            text, self.restore_notes = take_text(state), take_text(notes)
            check(status, err)
            return dict(json.loads(text)) if found[0] else None

    def export(
        self, path: str | os.PathLike[str], dtype: str = "auto", overwrite: bool = False, max_shard_bytes: int = 0
    ) -> str:
        """Writes the weights as a Hugging Face directory. Their digest, as in LLM.info."""
        with self._lock:
            o, info, err = ffi.new("iv_export_options *"), ffi.new("iv_export_info *"), new_error()
            lib().iv_export_options_init_sized(o, ffi.sizeof("iv_export_options"))
            name = c_string(str(dtype).removeprefix("torch."), "dtype")
            o.dtype, o.overwrite = name, _check.flag(overwrite, "overwrite")
            o.max_shard_bytes = _check.integer(max_shard_bytes, "max_shard_bytes", 0, _check.SIZE_MAX) or o.max_shard_bytes
            check(lib().iv_trainer_export(self._handle.pointer, path_bytes(path), o, info, err), err)
            return text_of(info.weights_digest)
