"""Values from callers as plain Python values: numpy's and torch's numbers and arrays are read; what would be cut, rounded or
read as something else is refused."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Set
from typing import Any, NoReturn

from ._errors import InvarError, Status

INT32_MAX = 2**31 - 1
SIZE_MAX = 2**63 - 1  # sizes of the library are unsigned, of 64 bits; none is larger than this
SEED_MIN, SEED_MAX = -(2**63), 2**64 - 1  # a negative seed is its two's complement
FLOAT32_MAX = 3.4028234663852886e38


def shown(value: Any) -> str:
    """Kind and text of a value, for a message."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:60] + '...'}"


def wrong(what: str, wanted: str, value: Any, hint: str = "", status: Status = Status.INVALID) -> NoReturn:
    raise InvarError(status, f"{what}: wanted {wanted}, found {shown(value)}{hint and ': ' + hint}")


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def is_integer(value: Any) -> bool:
    """Python's, numpy's, or an array of one without dimensions."""
    if type(value) is int:
        return True
    if _is_bool(value) or getattr(value, "ndim", 0) != 0:
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def integer(value: Any, what: str, low: int, high: int, status: Status = Status.INVALID) -> int:
    number = value
    if type(value) is not int:
        if not is_integer(value):
            wrong(what, "an integer", value)
        number = operator.index(value)
    if not low <= number <= high:
        wanted = f"{low} or more" if high >= INT32_MAX and number < low else f"{low} to {high}"
        raise InvarError(status, f"{what}: wanted {wanted}, found {number}")
    return int(number)


def number(value: Any, what: str, low: float = -FLOAT32_MAX, high: float = FLOAT32_MAX) -> float:
    """A finite number. A text is none."""
    if _is_bool(value) or isinstance(value, (str, bytes, bytearray)) or getattr(value, "ndim", 0) != 0:
        wrong(what, "a number", value)
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        wrong(what, "a number", value)
    if not math.isfinite(found):
        wrong(what, "a finite number", value)
    if not low <= found <= high:
        wrong(what, f"{low:g} or more" if high >= FLOAT32_MAX and found < low else f"{low:g} to {high:g}", value)
    return found


def flag(value: Any, what: str) -> bool:
    if not _is_bool(value) or getattr(value, "ndim", 0) != 0:
        wrong(what, "True or False", value)
    return bool(value)


def text(value: Any, what: str) -> str:
    """A text that the library reads to its end."""
    if not isinstance(value, str):
        hint = "decode() it first" if isinstance(value, (bytes, bytearray)) else ""
        wrong(what, "a text", value, hint)
    if "\0" in value:
        raise InvarError(Status.INVALID, f"{what}: wanted a text without NUL, found one at {value.index(chr(0))}")
    return str(value)


def is_listing(value: Any) -> bool:
    """A list or what reads as one: not a text, bytes, a mapping or a set."""
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, memoryview, Mapping, Set))


def is_array(value: Any) -> bool:
    """numpy's or torch's."""
    return hasattr(value, "dtype") and hasattr(value, "ndim") and hasattr(value, "tolist")


def listing(value: Any, what: str, wanted: str) -> list[Any]:
    if not is_listing(value):
        hint = "decode() it first" if isinstance(value, (bytes, bytearray)) else ""
        wrong(what, wanted, value, hint)
    try:
        return list(value)
    except (TypeError, RuntimeError):  # an array without dimensions
        wrong(what, wanted, value)


def integers(value: Any, what: str, low: int = 0, high: int = INT32_MAX) -> list[int]:
    """A row of integers: a list, tuple, range, array or tensor."""
    if is_array(value):
        kind = str(value.dtype).removeprefix("torch.")
        if value.ndim != 1 or not (getattr(value.dtype, "kind", "") in ("i", "u") or kind.startswith(("int", "uint"))):
            shape = list(value.shape)
            raise InvarError(Status.INVALID, f"{what}: wanted a row of integers, found an array of {kind} with shape {shape}")
        found: list[Any] = value.tolist()
    else:
        found = listing(value, what, "a row of integers")
    if all(type(one) is int for one in found) and (not found or (min(found) >= low and max(found) <= high)):
        return found
    return [integer(one, f"{what}[{i}]", low, high) for i, one in enumerate(found)]


def token_ids(value: Any, what: str = "token ids") -> list[int]:
    return integers(value, what)


def seed(value: Any, what: str) -> int | None:
    return None if value is None else integer(value, what, SEED_MIN, SEED_MAX)


def optional(check: Any, value: Any, *args: Any) -> Any:
    return None if value is None else check(value, *args)


def instance(value: Any, what: str, kind: type, hint: str = "") -> None:
    if not isinstance(value, kind):
        wrong(what, f"a {kind.__name__}" if kind.__name__[0] not in "AEIOU" else f"an {kind.__name__}", value, hint)


def host_array(value: Any, what: str) -> Any:
    """A numpy array of numbers; of a tensor its values, wherever it lies."""
    import numpy as np

    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # numpy lacks it; widening is exact
            value = value.float()
        value = value.numpy()
    if isinstance(value, (str, bytes, bytearray, Mapping, Set)):
        wrong(what, "a row of numbers", value)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        wrong(what, "a row of numbers", value)
    if array.dtype.kind not in "biuf":
        wrong(what, "a row of numbers", value)
    return array


def floats(value: Any, count: int | None, what: str, finite: bool = True) -> Any:
    """A float32 row without gaps: the caller's own if it is one."""
    import numpy as np

    array = host_array(value, what)
    if array.ndim != 1 or (count is not None and array.shape != (count,)):
        wanted = "a row" if count is None else f"{count} elements"
        raise InvarError(Status.INVALID, f"{what}: wanted {wanted}, found shape {array.shape}")
    with np.errstate(over="ignore"):
        row = np.ascontiguousarray(array, np.float32)
    if finite and not np.isfinite(row).all():
        at = int(np.flatnonzero(~np.isfinite(row))[0])
        raise InvarError(Status.INVALID, f"{what}[{at}]: wanted a finite float32, found {array[at]}")
    return row
