"""The ASGI application: keys, errors, and a service that lives as long as it."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .._errors import InvarError
from .errors import ServerError, as_server_error
from .routes import PREFIX, routes
from .service import Service

log = logging.getLogger("invar.tinker")
SWEEP_S = 60.0
KEYLESS = (f"{PREFIX}/healthz", f"{PREFIX}/files/")  # links to files are signed

Scope = dict[str, Any]
ASGI = Callable[..., Awaitable[None]]


class Keys:
    """Refuses requests without one of the server's keys."""

    def __init__(self, app: ASGI, keys: tuple[str, ...]) -> None:
        self._app, self._keys = app, [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and self._keys and not scope["path"].startswith(KEYLESS):
            given = dict(scope["headers"]).get(b"x-api-key", b"")
            if not any([hmac.compare_digest(given, key) for key in self._keys]):
                wanted = "X-API-Key: wanted a key of this server (--api-key), found " + ("another" if given else "none")
                await JSONResponse({"detail": wanted}, 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _refuse(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"detail": f"{error.detail}: the server has no such route (docs/TINKER.md)"}, error.status_code)
    shown = as_server_error(error)
    if shown.status >= 500 and not isinstance(error, ServerError):
        log.error("request failed", exc_info=error)
    return JSONResponse({"detail": str(shown)}, shown.status)


def application(service: Service) -> Starlette:
    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        app.state.service = service
        service.futures.attach(asyncio.get_running_loop())
        sweeper = asyncio.create_task(_sweep(service))
        try:
            yield
        finally:
            sweeper.cancel()
            await asyncio.to_thread(service.close)

    handlers: Any = {ServerError: _refuse, InvarError: _refuse, HTTPException: _refuse, Exception: _refuse}
    app = Starlette(routes=routes(), lifespan=life, exception_handlers=handlers)
    app.add_middleware(Keys, keys=service.options.api_key)
    return app


async def _sweep(service: Service) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        try:
            await asyncio.to_thread(service.sweep)
        except Exception:
            log.exception("sweep failed")
