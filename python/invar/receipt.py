"""Receipts: a finished request, its engine's identity and its outcome (docs/formats/receipt.md)."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._engine_args import engine_args
from ._errors import InvarError, Status
from ._library import Handle, check, encode, ffi, lib, new_error, text_of, text_or_none
from ._model import path_text

if TYPE_CHECKING:
    from ._engine import Engine

FINISH = ("", "stop", "length", "cancelled", "error")


class Receipt:
    """One receipt. Its fields are checked, and its digest against its tokens."""

    def __init__(self, source: str | bytes | os.PathLike[str], name: str = "receipt") -> None:
        """source: a line of JSON, or (a Path, or a text that does not begin with "{") a file of one line."""
        if isinstance(source, os.PathLike) or (isinstance(source, str) and not source.lstrip().startswith("{")):
            name = path_text(source, "receipt")
            lines = read_lines(name)
            if len(lines) != 1:
                raise InvarError(Status.FORMAT, f"{name}: wanted one receipt, found {len(lines)}; use Receipt.read_all")
            source = lines[0]
        data = source if isinstance(source, bytes) else encode(source, "receipt")
        out, err = ffi.new("iv_receipt **"), new_error()
        check(lib().iv_receipt_read(os.fsencode(name), data, len(data), out, err), err)
        self._handle = Handle(out[0], lib().iv_receipt_close, "receipt")
        info = ffi.new("iv_receipt_info *")
        lib().iv_receipt_get_info(out[0], info)
        self.json = data.decode()
        self.model = text_of(info.model)
        self.invar_version = text_of(info.invar_version)
        self.dtype, self.arithmetic = text_of(info.maker.dtype), text_of(info.maker.arithmetic)
        self.numerics, self.tensor_parallel_size = text_of(info.maker.numerics), info.maker.tensor_parallel_size
        self.sampled_ids_digest = text_of(info.maker.sampled_ids_digest)  # "": all ids were drawn
        self.digest, self.finish_reason = text_of(info.digest), FINISH[info.finish]
        self.stop = text_or_none(info.stop)
        self.token_ids: list[int] = ffi.unpack(info.ids, info.id_count) if info.id_count else []
        self.logprobs: list[float] = ffi.unpack(info.logprobs, info.id_count) if info.id_count else []
        request = self._request()
        self.prompt_token_ids: list[int] = ffi.unpack(request.ids, request.id_count)
        self.seed: int = request.seed

    def __reduce__(self) -> Any:
        return Receipt, (self.json.encode(),)

    @classmethod
    def read_all(cls, path: str | os.PathLike[str]) -> list[Receipt]:
        """A file with a receipt on each line."""
        name = path_text(path, "receipts")
        return [cls(line, f"{name}:{number}") for number, line in enumerate(read_lines(name), 1)]

    def _request(self) -> Any:
        r = ffi.new("iv_request *")
        lib().iv_receipt_get_request_sized(self._handle.pointer, r, ffi.sizeof("iv_request"))
        return r


def read_lines(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            return [line for line in file.read().split(b"\n") if line.strip()]
    except OSError as error:
        raise InvarError(Status.IO, f"{path}: wanted a file of receipts, found none to read: {error.strerror}") from None


@dataclass(frozen=True)
class Difference:
    """Where an answer first differs. found_token None: it had ended; wanted_token None: it went on."""

    position: int
    wanted_token: int | None
    wanted_logprob: float | None
    found_token: int | None
    found_logprob: float | None


@dataclass(frozen=True)
class Replay:
    """equal: every token, every bit of its log-probability, and the reason for the end."""

    equal: bool
    wanted_digest: str
    found_digest: str
    tokens: int
    positions_that_differ: int
    first_difference: Difference | None
    wanted_finish: str
    found_finish: str

    def __bool__(self) -> bool:
        return self.equal


def bits(value: float) -> bytes:
    return struct.pack("<f", value)


def first_difference(
    wanted: tuple[Sequence[int], Sequence[float]], found: tuple[Sequence[int], Sequence[float]]
) -> tuple[int, Difference | None]:
    """How many positions differ in the token or a bit of its log-probability, and the first of them."""
    count, first = 0, None
    for t in range(max(len(wanted[0]), len(found[0]))):
        a = (wanted[0][t], wanted[1][t]) if t < len(wanted[0]) else (None, None)
        b = (found[0][t], found[1][t]) if t < len(found[0]) else (None, None)
        same = a[1] is not None and b[1] is not None and a[0] == b[0] and bits(a[1]) == bits(b[1])
        if not same:
            count += 1
            first = first or Difference(t, *a, *b)
    return count, first


def replay_on(engine: Engine, receipt: Receipt) -> Replay:
    pointer, err = engine.handle.pointer, new_error()
    check(lib().iv_receipt_match(receipt._handle.pointer, pointer, err), err)
    count, request = len(receipt.token_ids), receipt._request()
    if count == 0:
        return Replay(True, receipt.digest, receipt.digest, 0, 0, None, receipt.finish_reason, receipt.finish_reason)
    need = request.id_count + count
    if need > engine.info.max_model_len:
        limit = engine.info.max_model_len
        raise InvarError(Status.LIMIT, f"replay: max_model_len: wanted {need} or more, found {limit}")
    request.max_tokens, request.min_tokens, request.logprobs = count, min(request.min_tokens, count), -1
    number, busy, event = ffi.new("uint64_t *"), ffi.new("bool *", True), ffi.new("iv_event *")
    check(lib().iv_engine_submit(pointer, request, number, err), err)
    ids: list[int] = []
    logprobs: list[float] = []
    end: tuple[str, str, str | None] = ("", "", None)
    try:
        while busy[0]:
            check(lib().iv_engine_step(pointer, busy, err), err)
            while lib().iv_engine_next_event(pointer, event):
                if event.kind == lib().IV_EVENT_TOKEN:
                    ids.append(event.token)
                    logprobs.append(event.logprob)
                elif event.error != ffi.NULL:
                    raise InvarError(Status(event.error_status), f"replay: {text_of(event.error)}")
                else:
                    end = FINISH[event.finish], text_of(event.digest), text_or_none(event.stop)
    except BaseException:
        lib().iv_engine_cancel(pointer, number[0], err)
        engine.drop_all()
        raise
    differ, first = first_difference((receipt.token_ids, receipt.logprobs), (ids, logprobs))
    # A cancelled answer ended at a point that its request does not determine.
    whole = receipt.finish_reason in ("stop", "length")
    same_end = not whole or (receipt.finish_reason == end[0] and receipt.stop == end[2])
    equal = not differ and same_end and receipt.digest == end[1]
    return Replay(equal, receipt.digest, end[1], count, differ, first, receipt.finish_reason, end[0])


def replay(
    receipt: str | bytes | os.PathLike[str] | Receipt, model: str | os.PathLike[str] | None = None, **options: Any
) -> Replay:
    """Computes a receipt's request again in a new engine and compares every bit. model: the receipt's if None;
    options: those of LLM, except what the receipt fixes (dtype, arithmetic, numerics, sample_all_ids)."""
    from ._engine import Engine

    if not isinstance(receipt, Receipt):
        receipt = Receipt(receipt)
    fixed_names = sorted({"dtype", "arithmetic", "numerics"} & set(options))
    if fixed_names:
        names = ", ".join(fixed_names)
        raise InvarError(Status.INVALID, f"replay: wanted {names} from the receipt, found {names} as an option")
    fixed: dict[str, Any] = {"dtype": receipt.dtype, "arithmetic": receipt.arithmetic, "numerics": receipt.numerics}
    fixed["sample_all_ids"] = not receipt.sampled_ids_digest
    if receipt.numerics != "invar":
        fixed["tensor_parallel_size"] = receipt.tensor_parallel_size
    longest = len(receipt.prompt_token_ids) + len(receipt.token_ids)
    engine = Engine(engine_args(model or receipt.model, {"max_model_len": longest, **options, **fixed}))
    try:
        return replay_on(engine, receipt)
    finally:
        engine.close()
