"""Errors as the client reads them: a status with a text at once, or a failed future with a category."""

from __future__ import annotations

from .._errors import InvarError, Status

# The client tries 408, 409, 429 and 5xx again, so that none of them stands for a request that can never succeed.
_HTTP = {
    Status.INVALID: 400, Status.NOT_FOUND: 404, Status.FORMAT: 400, Status.UNSUPPORTED: 400, Status.LIMIT: 400,
    Status.CONTEXT_LENGTH: 400, Status.NOT_FINITE: 400, Status.BUSY: 429,
}  # fmt: skip


class ServerError(Exception):
    """status: of HTTP. Texts name the place, what was wanted and what was found."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status

    @property
    def category(self) -> str:
        return "user" if self.status < 500 else "server"


def invalid(what: str, wanted: str, found: object, hint: str = "") -> ServerError:
    text = found if isinstance(found, str) else repr(found)
    text = text if len(text) <= 200 else text[:200] + "..."
    return ServerError(f"{what}: wanted {wanted}, found {text}{hint and ': ' + hint}")


def as_server_error(error: BaseException) -> ServerError:
    if isinstance(error, ServerError):
        return error
    if isinstance(error, InvarError):
        return ServerError(str(error), _HTTP.get(error.status, 500))
    return ServerError(f"{type(error).__name__}: {error}", 500)
