"""Bytes of the wire: protobuf bodies to data, results to protobuf. JSON bodies are read by the client's own types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tinker.proto import tinker_public_pb2 as pb

from .errors import ServerError, invalid

PROTOBUF = "application/x-protobuf"
EMPTY_LOGPROB = -99999.0  # of an empty cell of a matrix of top log-probabilities
_DTYPES = {pb.DTYPE_FLOAT32: np.dtype("<f4"), pb.DTYPE_INT64: np.dtype("<i8"), pb.DTYPE_INT32: np.dtype("<i4")}


@dataclass(frozen=True)
class Datum:
    tokens: NDArray[np.int32]
    inputs: dict[str, NDArray[Any]]  # dense


@dataclass(frozen=True)
class Pass:
    """A forward, or a forward and a backward."""

    model_id: str
    seq_id: int
    data: list[Datum]
    loss: str
    config: dict[str, float | str]
    forward_only: bool


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding != "zstd":
        raise ServerError(f"Content-Encoding: wanted zstd or none, found {encoding}", 415)
    try:
        stream = zstandard.ZstdDecompressor().stream_reader(body)
        out = stream.read(limit + 1)
    except zstandard.ZstdError as error:
        raise ServerError(f"body: wanted a frame of zstd: {error}") from None
    if len(out) > limit:
        raise ServerError(f"body: wanted at most {limit} bytes after decompression, found more", 413)
    return bytes(out)


def _numbers(data: bytes, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    if len(data) % dtype.itemsize:
        raise invalid(what, f"a multiple of {dtype.itemsize} bytes", f"{len(data)} bytes")
    return np.frombuffer(data, dtype)


def dense(tensor: pb.Tensor, what: str) -> NDArray[Any]:
    """A tensor of one or two dimensions; 0 in the cells that a sparse one leaves out."""
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise invalid(what, "float32 or int64", f"dtype {tensor.dtype}")
    shape = tuple(tensor.shape)
    if tensor.HasField("sparse_csr"):
        return _dense_of_csr(tensor.sparse_csr, dtype, shape, what)
    values = _numbers(tensor.dense, dtype, what)
    if not shape:
        return values
    if len(shape) > 2 or any(n < 0 for n in shape) or int(np.prod(shape, dtype=np.float64)) != values.size:
        raise invalid(what, "one or two dimensions with as many values", f"shape {list(shape)} and {values.size} values")
    return values.reshape(shape)


def _dense_of_csr(csr: pb.SparseCsr, dtype: np.dtype[Any], shape: tuple[int, ...], what: str) -> NDArray[Any]:
    i8 = np.dtype("<i8")
    values, rows, columns = _numbers(csr.values, dtype, what), _numbers(csr.crow_indices, i8, what), _numbers(csr.col_indices, i8, what)
    if len(shape) != 2 or any(not 0 <= n < 2**31 for n in shape) or shape[0] * shape[1] > 2**28:
        raise invalid(what, "a shape [rows, columns] of a sparse tensor, at most 2^28 cells", f"{list(shape)}")
    counts = np.diff(rows)
    good = len(rows) == shape[0] + 1 and rows[0] == 0 and rows[-1] == len(values) == len(columns) and (counts >= 0).all()
    if not good or (len(columns) and not (0 <= columns.min() and columns.max() < shape[1])):
        raise invalid(what, f"indices of a sparse tensor of shape {list(shape)}", "others")
    out = np.zeros(shape, dtype)
    out[np.repeat(np.arange(shape[0]), counts), columns] = values
    return out


def tokens_of(chunks: Any, what: str) -> NDArray[np.int32]:
    parts = []
    for i, chunk in enumerate(chunks):
        kind = chunk.WhichOneof("chunk")
        if kind != "encoded_text":
            raise invalid(f"{what}: chunk {i}", "encoded text", str(kind), "the model reads text alone")
        parts.append(_numbers(chunk.encoded_text.tokens, np.dtype("<i4"), f"{what}: chunk {i}"))
    return np.concatenate(parts).astype(np.int32) if parts else np.zeros(0, np.int32)


def read_pass(body: bytes) -> tuple[str, int, Any]:
    """Model, place in its order, and the message: read_data() takes the rest, whose errors belong to the future."""
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise ServerError(f"body: wanted a ForwardBackwardRequest of tinker_public.proto: {error}") from None
    return message.model_id, message.seq_id, message


def read_data(message: Any, most: int) -> Pass:
    if not message.data or len(message.data) > most:
        raise invalid("data", f"1 to {most} sequences (--max-data)", str(len(message.data)))
    data = []
    for i, datum in enumerate(message.data):
        inputs = {name: dense(tensor, f"data[{i}]: {name}") for name, tensor in datum.loss_fn_inputs.items()}
        data.append(Datum(tokens_of(datum.model_input, f"data[{i}]: model_input"), inputs))
    config: dict[str, float | str] = dict(message.loss_fn_config)
    for name, value in message.loss_fn_config_v2.items():
        config[name] = value.text if value.WhichOneof("value") == "text" else value.number
    return Pass(message.model_id, message.seq_id, data, message.loss_fn, config, message.forward_only)


def write_pass(logprobs: Sequence[NDArray[np.float32]], metrics: Mapping[str, float]) -> bytes:
    """logprobs[i]: [tokens] or [tokens, columns]. Sequences of equal trailing shape make one record."""
    out = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    begin = 0
    while begin < len(logprobs):
        trailing, end = logprobs[begin].shape[1:], begin + 1
        while end < len(logprobs) and logprobs[end].shape[1:] == trailing:
            end += 1
        rows = logprobs[begin:end]
        record = out.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(rows))
        field = record.fields["logprobs"]
        field.dtype = pb.DTYPE_FLOAT32
        field.data = b"".join(np.ascontiguousarray(row, "<f4").tobytes() for row in rows)
        field.offsets = np.cumsum([0, *(row.size * 4 for row in rows)], dtype="<i8").tobytes()
        field.trailing_shape.extend(trailing)
        begin = end
    for name, value in metrics.items():
        out.metrics[name] = value
    return bytes(out.SerializeToString())


def write_top(out: Any, rows: Sequence[Sequence[tuple[int, float]] | None], k: int) -> None:
    """A matrix of top ids; None and missing ones are empty cells."""
    ids, values = np.zeros((len(rows), k), "<i4"), np.full((len(rows), k), EMPTY_LOGPROB, "<f4")
    for i, row in enumerate(rows):
        for j, (token, logprob) in enumerate((row or ())[:k]):
            ids[i, j], values[i, j] = token, logprob
    out.k, out.length, out.token_ids, out.logprobs = k, len(rows), ids.tobytes(), values.tobytes()


def write_tensor(out: Any, values: NDArray[Any], like: Any = None) -> None:
    """like: a request's sparse tensor, whose layout is kept; values are then those of its cells."""
    out.dtype = pb.DTYPE_FLOAT32 if values.dtype.kind == "f" else pb.DTYPE_INT32
    data = np.ascontiguousarray(values, "<f4" if values.dtype.kind == "f" else "<i4").tobytes()
    if like is None or like.sparse_crow_indices is None:
        out.shape.extend(values.shape)
        out.dense = data
        return
    out.shape.extend(like.shape)
    out.sparse_csr.values = data
    out.sparse_csr.crow_indices = np.asarray(like.sparse_crow_indices, "<i8").tobytes()
    out.sparse_csr.col_indices = np.asarray(like.sparse_col_indices, "<i8").tobytes()
