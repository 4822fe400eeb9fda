"""The exception of the package."""

from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum


class Status(IntEnum):
    """iv_status of invar.h."""

    OK = 0
    INVALID = 1  # an argument or a request field is wrong
    NOT_FOUND = 2  # a file or a named thing does not exist
    IO = 3  # the operating system failed a read or write
    FORMAT = 4  # a file's content breaks its format
    UNSUPPORTED = 5  # well formed, but not something invar does
    LIMIT = 6  # a named maximum would be exceeded
    NO_MEMORY = 7
    BUSY = 8  # full for now: try again later
    TEMPLATE = 9  # a chat template raised an error
    CONTEXT_LENGTH = 10  # a prompt leaves no room for an answer in max_model_len
    NOT_FINITE = 11  # the model computed a key, value or logit that is NaN or infinite


class InvarError(Exception):
    """Every error of the library and of this package: `status`, and the message as the exception's text."""

    status: Status

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[type["InvarError"], tuple[Status, str]]:
        return InvarError, (self.status, str(self))


class UnknownOption(InvarError, TypeError):
    """A keyword that does not exist: a TypeError, as Python's own functions raise."""

    def __init__(self, name: str, known: Iterable[str], what: str) -> None:
        close = get_close_matches(name, list(known), 1)
        hint = f"; {close[0]!r}?" if close else ""
        super().__init__(Status.INVALID, f"unknown {what} {name!r}{hint}")
