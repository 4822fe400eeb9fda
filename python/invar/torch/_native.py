"""invar_ops.h on torch tensors of a CPU or a GPU: checks, pointers, streams, errors. No autograd here."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence as Items
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .._errors import InvarError, Status
from .._library import Handle, check, encode, ffi, lib, new_error, take_text

DTYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


def refuse(message: str, status: Status = Status.UNSUPPORTED) -> InvarError:
    return InvarError(status, message)


def dtype_of(dtype: str | torch.dtype) -> torch.dtype:
    name = str(dtype).removeprefix("torch.")
    for known, text in DTYPES.items():
        if name == text:
            return known
    raise refuse(f"dtype: wanted bfloat16, float16 or float32, found {name}", Status.INVALID)


CPU = torch.device("cpu")


def context(dtype: torch.dtype, arithmetic: str = "auto", device: torch.device = CPU) -> Context:
    """The ops of a GEMM type: with threads of this process, or on a GPU."""
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return _context(dtype, arithmetic, device)


@lru_cache(maxsize=None)
def _context(dtype: torch.dtype, arithmetic: str, device: torch.device) -> Context:
    return Context(dtype, arithmetic, device)


def name_of(device: torch.device) -> str:
    if device.type not in ("cpu", "cuda"):
        raise refuse(f"device: wanted cpu or cuda, found {device}")
    return str(device)


def device_of(tensors: Items[tuple[str, Tensor]]) -> torch.device:
    """The one device of all of them."""
    first, one = tensors[0]
    for name, t in tensors:
        if t.device != one.device:
            raise refuse(f"{name}: wanted it on {one.device}, as {first}, found {t.device}", Status.INVALID)
    return one.device


class Context:
    """An iv_ops. After a fork it must be opened again. On a GPU a call runs on torch's current stream, with scratch of torch's
    allocator, and does not wait."""

    def __init__(self, dtype: torch.dtype, arithmetic: str, device: torch.device) -> None:
        options, out, err = ffi.new("iv_ops_options *"), ffi.new("iv_ops **"), new_error()
        words = DTYPES[dtype_of(dtype)], arithmetic, name_of(device)
        keep = [ffi.new("char[]", encode(word, "options")) for word in words]
        options.dtype, options.arithmetic, options.device = keep
        self._memory: list[Any] = memory_of(device) if device.type == "cuda" else []
        if self._memory:
            options.memory = self._memory[0]
        check(lib().iv_ops_open(options, out, err), err)
        self.dtype, self.device = dtype, device
        self._handle = Handle(out[0], lib().iv_ops_close, "ops")
        self._lock, self._stream = threading.Lock(), -1  # of a GPU: the stream of its last call
        self.arithmetic = ffi.string(lib().iv_ops_arithmetic(self._handle.pointer)).decode()

    def __reduce__(self) -> Any:
        return context, (self.dtype, self.arithmetic, self.device)

    def __deepcopy__(self, memo: Any) -> Context:
        return self

    def call(self, name: str, *args: Any) -> None:
        err = new_error()
        if self.device.type == "cpu":
            check(getattr(lib(), name)(self._handle.pointer, *args, err), err)
            return
        with self._lock:
            stream = torch.cuda.current_stream(self.device).cuda_stream
            if stream != self._stream:
                check(lib().iv_ops_set_stream(self._handle.pointer, ffi.cast("void *", stream), err), err)
                self._stream = stream
            check(getattr(lib(), name)(self._handle.pointer, *args, err), err)

    def finish(self) -> None:
        """Waits for a GPU; InvarError if its work met a key or value that is not finite."""
        if self.device.type != "cpu":
            self.call("iv_ops_synchronize")

    # ---- tensors

    def at(self, tensor: Tensor, dtype: torch.dtype, what: str, kind: str = "void *") -> Any:
        return pointer(tensor, dtype, what, kind, self.device)

    def typed(self, tensor: Tensor, what: str) -> Any:
        return self.at(tensor, self.dtype, what)

    def floats(self, tensor: Tensor | None, what: str, count: int | None = None) -> Any:
        """A float *; NULL for None."""
        if tensor is None:
            return ffi.NULL
        if count is not None and tensor.numel() != count:
            raise refuse(f"{what}: wanted {count} elements, found shape {tuple(tensor.shape)}", Status.INVALID)
        return self.at(tensor, torch.float32, what, "float *")

    def integers(self, tensor: Tensor, what: str) -> Any:
        return self.at(tensor, torch.int32, what, "int32_t *")

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)


def memory_of(device: torch.device) -> list[Any]:
    """iv_ops_memory over torch's caching allocator, and what it needs to live."""

    def number(p: Any) -> int:
        return int(ffi.cast("uintptr_t", p))

    @ffi.callback("void *(void *, size_t, void *)")  # type: ignore[untyped-decorator]
    def allocate(_context: Any, size: int, stream: Any) -> Any:
        try:
            return ffi.cast("void *", torch.cuda.caching_allocator_alloc(size, device, number(stream)))
        except Exception:  # the caller reports it
            return ffi.NULL

    @ffi.callback("void(void *, void *, void *)")  # type: ignore[untyped-decorator]
    def release(_context: Any, memory: Any, _stream: Any) -> None:
        torch.cuda.caching_allocator_delete(number(memory))  # type: ignore[no-untyped-call]

    return [ffi.new("iv_ops_memory *", [allocate, release, ffi.NULL]), allocate, release]


def pointer(tensor: Tensor, dtype: torch.dtype, what: str, kind: str = "void *", device: torch.device = CPU) -> Any:
    """The address of a tensor of the device without gaps."""
    if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
        raise refuse(f"{what}: wanted a plain tensor, found {type(tensor).__name__}", Status.INVALID)
    if tensor.device != device or tensor.dtype != dtype or not tensor.is_contiguous():
        gaps = "" if tensor.is_contiguous() else " with gaps"
        where = "the CPU" if device.type == "cpu" else device
        raise refuse(f"{what}: wanted {dtype} on {where}, found {tensor.dtype} on {tensor.device}{gaps}", Status.INVALID)
    return ffi.cast(kind, tensor.data_ptr())


def ids_of(tensor: Tensor, what: str) -> Any:
    """Token ids, which the library reads on the CPU."""
    return pointer(tensor, torch.int32, what, "int32_t *")


def matrix_of(tensor: Tensor, columns: int, what: str) -> int:
    """The rows of a matrix of so many columns."""
    if tensor.dim() != 2 or tensor.shape[1] != columns:
        raise refuse(f"{what}: wanted [rows, {columns}], found {list(tensor.shape)}", Status.INVALID)
    return tensor.shape[0]


# ---- sums over tokens


class Sums:
    """A sum over the tokens of a step in progress: iv_ops_sums."""

    def __init__(self, shape: Items[int], levels: int, device: torch.device = CPU) -> None:
        self.sum = torch.empty(tuple(shape), dtype=torch.float32, device=device)
        self.levels = [torch.empty_like(self.sum) for _ in range(levels)]

    def at(self, *index: Any) -> Sums:
        """Some rows of it."""
        part = Sums.__new__(Sums)
        part.sum, part.levels = self.sum[index], [level[index] for level in self.levels]
        return part

    def fill(self, ops: Context, c: Any, keep: list[Any]) -> None:
        c.sum = ops.floats(self.sum, "sums")
        if self.levels:
            keep.append(ffi.new("float *[]", [ops.floats(level, "sums") for level in self.levels]))
            c.level = keep[-1]


class Axis:
    """iv_ops_axis: `tokens` rows of each sequence [first, last) of all sequences, whose virtual ranks ascend."""

    def __init__(self, ranks: Items[int], virtual_ranks: int, first: int, last: int, tokens: Items[int]) -> None:
        self._keep = [ffi.new("uint32_t[]", list(ranks) or [0]), ffi.new("size_t[]", list(tokens) or [0])]
        self.c = ffi.new("iv_ops_axis *")
        self.c.ranks, self.c.tokens = self._keep
        self.c.count, self.c.to, self.c.virtual_ranks = len(ranks), last, virtual_ranks
        setattr(self.c, "from", first)
        self.rows = sum(tokens)


def sums_array(ops: Context, sums: Items[Sums]) -> tuple[Any, list[Any]]:
    keep: list[Any] = []
    array = ffi.new("iv_ops_sums[]", len(sums))
    for c, s in zip(array, sums):
        s.fill(ops, c, keep)
    return array, keep


# ---- linear layers


class Linear:
    """iv_ops_linear: weights [n, k] that share an input, with biases of all or of none."""

    def __init__(
        self,
        ops: Context,
        weights: Items[Tensor],
        biases: Items[Tensor | None] = (),
        *,
        row_parallel: bool = False,
        router: bool = False,
        one_chain: bool = False,
        head: bool = False,
        kv_heads: int = 0,
    ) -> None:
        self.ops, self.k = ops, weights[0].shape[-1]
        self._keep = [*weights, *biases]
        c = self.c = ffi.new("iv_ops_linear *")
        c.weights, c.k, c.one_chain, c.head, c.kv_heads = len(weights), self.k, one_chain, head, kv_heads
        c.row_parallel, c.router = row_parallel, router
        dtype = weights[0].dtype
        c.weight_float = dtype == torch.float32
        if dtype not in (torch.float32, ops.dtype):
            raise refuse(f"weights: wanted float32 or {ops.dtype}, found {dtype}", Status.INVALID)
        if len(weights) > 3:
            raise refuse(f"linear: wanted 1 to 3 weights, found {len(weights)}", Status.INVALID)
        self.outputs = 0
        for i, weight in enumerate(weights):
            rows = matrix_of(weight, self.k, "weight")
            bias = biases[i] if biases else None
            c.weight[i].data, c.weight[i].n = ops.at(weight, dtype, "weight"), rows
            c.weight[i].bias = ops.floats(bias, "bias", rows)
            self.outputs += rows

    def forward(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """x W^T + bias as float32; with `add`: added to it, in place."""
        rows = matrix_of(x, self.k, "linear: x")
        out = self.ops.new(rows, self.outputs) if add is None else add
        if matrix_of(out, self.outputs, "linear: out") != rows:
            raise refuse(f"linear: wanted {rows} rows, found {len(out)}", Status.INVALID)
        to = self.ops.floats(out, "linear: out")
        self.ops.call("iv_ops_linear_forward", self.c, self.ops.typed(x, "linear: x"), rows, add is not None, to)
        return out

    def input_gradient(self, dy: Tensor) -> Tensor:
        rows = matrix_of(dy, self.outputs, "linear: dy")
        dx = self.ops.new(rows, self.k)
        typed = self.ops.typed(dy, "linear: dy")
        self.ops.call("iv_ops_linear_input_gradient", self.c, typed, rows, self.ops.floats(dx, "linear: dx"))
        return dx

    def weight_gradient(self, axis: Axis, dy: Tensor, x: Tensor, sums: Items[Sums]) -> None:
        for what, tensor, columns in (("dy", dy, self.outputs), ("x", x, self.k)):
            if matrix_of(tensor, columns, f"linear: {what}") != axis.rows:
                raise refuse(f"linear: {what}: wanted {axis.rows} rows, found {len(tensor)}", Status.INVALID)
        array, _keep = sums_array(self.ops, sums)
        dy_at, x_at = self.ops.typed(dy, "linear: dy"), self.ops.typed(x, "linear: x")
        self.ops.call("iv_ops_linear_weight_gradient", self.c, axis.c, dy_at, x_at, array)


def column_sums(ops: Context, axis: Axis, dy: Tensor, first: int, n: int, sums: Sums) -> None:
    array, _keep = sums_array(ops, [sums])
    ops.call("iv_ops_column_sums", axis.c, ops.floats(dy, "column sums"), dy.shape[1], first, n, array)


# ---- rows


def rounded(ops: Context, x: Tensor) -> Tensor:
    if ops.dtype == torch.float32:
        return x
    out = ops.empty(*x.shape)
    ops.call("iv_ops_round", ops.floats(x, "round"), x.numel(), ops.typed(out, "round"))
    return out


def rms_norm(ops: Context, x: Tensor, weight: Tensor, eps: float, typed: bool = True) -> Tensor:
    rows, n = matrix_of(x, weight.numel(), "rms_norm: x"), weight.numel()
    out = ops.new(rows, n, dtype=ops.dtype if typed else torch.float32)
    w, to = ops.floats(weight, "rms_norm: weight"), ops.at(out, out.dtype, "rms_norm")
    ops.call("iv_ops_rms_norm", ops.floats(x, "rms_norm: x"), w, eps, rows, n, typed, to)
    return out


def rms_norm_backward(
    ops: Context,
    x: Tensor,
    weight: Tensor,
    eps: float,
    dy: Tensor,
    add: Tensor | None,
    axis: Axis | None,
    sums: Sums | None,
) -> Tensor:
    rows, n = matrix_of(x, weight.numel(), "rms_norm: x"), weight.numel()
    dx = ops.new(rows, n)
    array, _keep = sums_array(ops, [sums]) if sums else (ffi.NULL, [])
    args = [ops.floats(x, "x"), ops.floats(weight, "weight"), eps, rows, n, ops.floats(dy, "dy", rows * n), ops.floats(add, "add", rows * n)]
    ops.call("iv_ops_rms_norm_backward", *args, axis.c if axis else ffi.NULL, ops.floats(dx, "dx"), array)
    return dx


def swiglu(ops: Context, gate_up: Tensor, keep: bool = False) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """silu(gate) * up; with keep also gate and up as the backward pass sees them."""
    rows, n = gate_up.shape[0], gate_up.shape[1] // 2
    matrix_of(gate_up, 2 * n, "swiglu")
    out = ops.empty(rows, n)
    gate, up = (ops.empty(rows, n), ops.empty(rows, n)) if keep else (None, None)
    kept = [ffi.NULL if t is None else ops.typed(t, "swiglu") for t in (gate, up)]
    ops.call("iv_ops_swiglu", ops.floats(gate_up, "swiglu"), rows, n, *kept, ops.typed(out, "swiglu"))
    return out, gate, up


def swiglu_backward(ops: Context, gate: Tensor, up: Tensor, da: Tensor, typed: bool = True) -> Tensor:
    rows, n = gate.shape
    out = ops.new(rows, 2 * n, dtype=ops.dtype if typed else torch.float32)
    args = [ops.typed(gate, "gate"), ops.typed(up, "up"), ops.floats(da, "da", rows * n), rows, n, typed]
    ops.call("iv_ops_swiglu_backward", *args, ops.at(out, out.dtype, "swiglu"))
    return out


def embedding(ops: Context, weight: Tensor, ids: Tensor) -> Tensor:
    (vocab, n), ids = weight.shape, ids.cpu()
    out = ops.new(ids.numel(), n)
    w, is_float = ops.at(weight, weight.dtype, "embedding"), weight.dtype == torch.float32
    if weight.dtype not in (torch.float32, ops.dtype):
        raise refuse(f"embedding: wanted float32 or {ops.dtype}, found {weight.dtype}", Status.INVALID)
    ops.call("iv_ops_embedding", w, is_float, vocab, n, ids_of(ids, "ids"), ids.numel(), ops.floats(out, "out"))
    return out


def embedding_backward(
    ops: Context, vocab: int, ids: Tensor, ranks: Tensor, virtual_ranks: int, dx: Tensor
) -> Tensor:
    """ids and ranks (int32) of all tokens of the step, in order of virtual ranks."""
    out, ids, ranks = ops.new(vocab, dx.shape[1]), ids.cpu(), ranks.cpu()
    r = ffi.cast("uint32_t *", ids_of(ranks, "ranks"))
    args = [vocab, dx.shape[1], ids_of(ids, "ids"), r, virtual_ranks, ops.floats(dx, "dx"), ids.numel(), ops.floats(out, "out")]
    ops.call("iv_ops_embedding_backward", *args)
    return out


# ---- attention


class Attention:
    """iv_ops_attention over whole sequences."""

    def __init__(
        self,
        ops: Context,
        lengths: Items[int],
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        window: int = 0,
        tables: tuple[Tensor, Tensor] | None = None,
        norms: tuple[Tensor, Tensor] | None = None,
        eps: float = 0.0,
    ) -> None:
        self.ops, self.rows = ops, sum(lengths)
        self.q, self.kv = heads * head_dim, kv_heads * head_dim
        self._keep: list[Any] = [ffi.new("size_t[]", list(lengths) or [0]), tables, norms]
        c = self.c = ffi.new("iv_ops_attention *")
        c.heads, c.kv_heads, c.head_dim, c.window, c.eps = heads, kv_heads, head_dim, window, eps
        c.lengths, c.sequences = self._keep[0], len(lengths)
        if norms:
            c.q_norm, c.k_norm = (ops.floats(norm, "head norm", head_dim) for norm in norms)
        if tables:
            c.cosine, c.sine = (ops.floats(table, "rope table") for table in tables)
            c.positions = tables[0].shape[0]

    def rope(self, qkv: Tensor, keep: bool = False) -> list[Tensor]:
        """q, k, v; with keep also q and k before their norms. qkv is changed."""
        self._rows(qkv, self.q + 2 * self.kv, "rope: qkv")
        widths = [self.q, self.kv, self.kv] + ([self.q, self.kv] if keep else [])
        out = [self.ops.empty(self.rows, width) for width in widths]
        at = [self.ops.typed(t, "rope") for t in out] + [ffi.NULL] * (5 - len(out))
        self.ops.call("iv_ops_rope", self.c, self.ops.floats(qkv, "rope: qkv"), *at)
        return out

    def rope_backward(
        self, raw: Items[Tensor], axis: Axis | None, dqkv: Tensor, sums: Items[Sums] | None
    ) -> None:
        """dqkv in place."""
        self._rows(dqkv, self.q + 2 * self.kv, "rope: dqkv")
        array, _keep = sums_array(self.ops, sums or [])
        at = [self.ops.typed(t, "rope") for t in raw] or [ffi.NULL, ffi.NULL]
        two = [array, array + 1] if sums else [ffi.NULL, ffi.NULL]
        a = axis.c if axis else ffi.NULL
        self.ops.call("iv_ops_rope_backward", self.c, *at, a, self.ops.floats(dqkv, "rope: dqkv"), *two)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The output, and what the backward pass needs of the sums of weights."""
        at = self._qkv(q, k, v)
        out, lse2 = self.ops.empty(self.rows, self.q), self.ops.new(self.rows, self.c.heads)
        self.ops.call("iv_ops_attention_forward", self.c, *at, self.ops.typed(out, "attention"), self.ops.floats(lse2, "lse2"))
        return out, lse2

    def backward(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, dout: Tensor, lse2: Tensor) -> Tensor:
        at = self._qkv(q, k, v)
        self._rows(dout, self.q, "attention: dout")
        dqkv = self.ops.new(self.rows, self.q + 2 * self.kv)
        at += [self.ops.typed(out, "attention: out"), self.ops.typed(dout, "attention: dout")]
        self.ops.call("iv_ops_attention_backward", self.c, *at, self.ops.floats(lse2, "lse2"), self.ops.floats(dqkv, "dqkv"))
        return dqkv

    def _rows(self, tensor: Tensor, width: int, what: str) -> None:
        if matrix_of(tensor, width, what) != self.rows:
            raise refuse(f"{what}: wanted {self.rows} rows, found {len(tensor)}", Status.INVALID)

    def _qkv(self, q: Tensor, k: Tensor, v: Tensor) -> list[Any]:
        for tensor, width, name in ((q, self.q, "q"), (k, self.kv, "k"), (v, self.kv, "v")):
            self._rows(tensor, width, f"attention: {name}")
        return [self.ops.typed(t, "attention") for t in (q, k, v)]


# ---- experts


def route(ops: Context, logits: Tensor, k: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """The k experts of each row, ids ascending, and their weights."""
    rows, experts = logits.shape
    ids, weights = ops.new(rows, k, dtype=torch.int32), ops.new(rows, k)
    to = ops.integers(ids, "route"), ops.floats(weights, "route")
    ops.call("iv_ops_route", ops.floats(logits, "router"), rows, experts, k, normalize, *to)
    return ids, weights


def route_backward(
    ops: Context, logits: Tensor, k: int, normalize: bool, ids: Tensor, weights: Tensor, dweights: Tensor
) -> Tensor:
    rows, experts = logits.shape
    out = ops.new(rows, experts)
    at = [ops.integers(ids, "route"), ops.floats(weights, "route", rows * k), ops.floats(dweights, "route", rows * k), ops.floats(out, "route")]
    ops.call("iv_ops_route_backward", ops.floats(logits, "router"), rows, experts, k, normalize, *at)
    return out


def expert_sum(ops: Context, ids: Tensor, terms: Tensor, out: Tensor) -> Tensor:
    """out + the terms [rows, k, n] of each row, in place."""
    rows, k, n = terms.shape
    to = ops.floats(out, "experts", rows * n)
    ops.call("iv_ops_expert_sum", ops.integers(ids, "experts"), ops.floats(terms, "experts"), rows, k, n, to)
    return out


def expert_weight_gradient(ops: Context, da: Tensor, act: Tensor) -> Tensor:
    rows, n = da.shape
    out = ops.new(rows)
    to = ops.floats(out, "experts")
    ops.call("iv_ops_expert_weight_gradient", ops.floats(da, "experts"), ops.typed(act, "experts"), rows, n, to)
    return out


def scale_rows(ops: Context, x: Tensor, by: Tensor) -> Tensor:
    """x times a factor for each row, in place."""
    ops.call("iv_ops_scale_rows", ops.floats(x, "scale"), ops.floats(by, "scale", len(x)), *x.shape)
    return x


# ---- log-probabilities


def logprobs(ops: Context, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Of targets (int32) in each row of logits; and the rows' maxima and sums."""
    (rows, vocab), targets = logits.shape, targets.cpu()
    out = [ops.new(rows) for _ in range(3)]
    if targets.numel() != rows:
        raise refuse(f"logprobs: wanted {rows} targets, found {targets.numel()}", Status.INVALID)
    at = [ops.floats(t, "logprobs") for t in out]
    ids = ids_of(targets, "targets")
    ops.call("iv_ops_logprobs", ops.floats(logits, "logits"), rows, vocab, ids, temperature, *at)
    return out[0], out[1], out[2]


def logprobs_backward(
    ops: Context,
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    maximum: Tensor,
    total: Tensor,
    grads: Tensor,
    out: Tensor,
) -> None:
    """out: [rows, vocab], typed or float32."""
    (rows, vocab), targets = logits.shape, targets.cpu()
    stats = [ops.floats(t, "logprobs", rows) for t in (maximum, total, grads)]
    typed = out.dtype == ops.dtype
    to, ids = ops.at(out, out.dtype, "dlogits"), ids_of(targets, "targets")
    ops.call("iv_ops_logprobs_backward", ops.floats(logits, "logits"), rows, vocab, ids, temperature, *stats, typed, to)


# ---- configuration, sums of arrays


def config_of(text: str) -> Any:
    """What the engine makes of a config.json: its fields as attributes, `layers` with an entry for each layer. An
    InvarError names what the engine lacks."""
    out, err, data = ffi.new("iv_text *"), new_error(), encode(text, "config")
    check(lib().iv_ops_config_json(data, len(data), out, err), err)
    config = json.loads(take_text(out), object_hook=lambda fields: SimpleNamespace(**fields))
    config.layers = [run for run in config.layers for _ in range(run.count)]
    return config


def rope_tables(ops: Context, text: str, positions: int, head_dim: int) -> tuple[Tensor, Tensor]:
    cosine, sine = ops.new(positions, head_dim // 2), ops.new(positions, head_dim // 2)
    data = encode(text, "config")
    ops.call("iv_ops_rope_tables", data, len(data), positions, ops.floats(cosine, "rope"), ops.floats(sine, "rope"))
    return cosine, sine


def tree_sum(parts: Items[Tensor], out: Tensor) -> Tensor:
    """The sum of a power of two of equal float32 tensors in the binary tree; `out` may be the first."""
    ops = context(torch.float32, device=out.device)
    array = ffi.new("float *[]", [ops.floats(part, "tree sum", out.numel()) for part in parts])
    ops.call("iv_ops_tree_sum", array, len(parts), out.numel(), ops.floats(out, "tree sum"))
    return out


def virtual_ranks_of(lengths: Items[int], virtual_ranks: int) -> list[list[int]]:
    """The sequences of each virtual rank."""
    err = new_error()
    index, begin = ffi.new("uint32_t[]", max(1, len(lengths))), ffi.new("size_t[]", max(1, virtual_ranks) + 1)
    c = ffi.new("size_t[]", list(lengths) or [0])
    check(lib().iv_ops_virtual_ranks(c, len(lengths), virtual_ranks, index, begin, err), err)
    return [[index[i] for i in range(begin[r], begin[r + 1])] for r in range(virtual_ranks)]
