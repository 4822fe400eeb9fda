"""Routes of the client, /api/v1/...: JSON or protobuf to a call of the service, and its answer back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from tinker import types

from . import wire
from .errors import ServerError, invalid
from .futures import Future
from .sampling import unsupported
from .service import Service
from .state import Path, check_ttl, parse_path

POLL_S = 25.0  # that a poll waits for a result; the client gives up after 45
PREFIX = "/api/v1"
T = TypeVar("T", bound=BaseModel)
Handler = Callable[[Service, Request], Awaitable[Response]]
_ROUTES: list[tuple[str, str, Handler]] = []


def route(method: str, path: str) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        _ROUTES.append((method, path, handler))
        return handler

    return add


def routes() -> list[Route]:
    def bind(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def call(request: Request) -> Response:
            return await handler(request.app.state.service, request)

        return call

    return [Route(PREFIX + path, bind(handler), methods=[method]) for method, path, handler in _ROUTES]


async def body_of(service: Service, request: Request) -> bytes:
    most, parts, size = service.options.max_request_bytes, [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise ServerError(f"body: wanted at most {most} bytes (--max-request-bytes), found more", 413)
        parts.append(part)
    return wire.decompress(b"".join(parts), request.headers.get("content-encoding", ""), most)


async def json_of(service: Service, request: Request) -> Any:
    body = await body_of(service, request)
    try:
        return json.loads(body or b"{}")
    except ValueError as error:
        raise ServerError(f"body: wanted JSON: {error}") from None


async def read(service: Service, request: Request, kind: type[T]) -> T:
    """A request by the client's own type. One that is refused keeps its place in its model's order."""
    given = await json_of(service, request)
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        if isinstance(given, dict) and isinstance(given.get("model_id"), str) and isinstance(given.get("seq_id"), int):
            service.models.skip(given["model_id"], given["seq_id"])
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise invalid(f"body: {place}", first["msg"], repr(first.get("input"))) from None


def answer(value: BaseModel) -> Response:
    return Response(value.model_dump_json(), media_type="application/json")


def later(future: Future) -> Response:
    return JSONResponse(future.answer())


NOTHING = Response(status_code=204)

# ---- clients and sessions


@route("GET", "/healthz")
async def health(_: Service, request: Request) -> Response:
    return answer(types.HealthResponse(status="ok"))


@route("POST", "/client/config")
async def client_config(service: Service, request: Request) -> Response:
    """One body for each pass, so that its sums are those of one batch."""
    most = service.options.max_request_bytes // 2
    return answer(types.ClientConfigResponse(
        proto_compress_fwdbwd=True, parallel_fwdbwd_chunks=True, fwdbwd_max_chunk_len=service.options.max_data, fwdbwd_max_chunk_bytes_count=most,
        sample_join_sampling_session=True, sample_max_concurrent_requests=min(2000, service.options.max_requests), sample_no_retries=False,
    ))  # fmt: skip


@route("POST", "/client/dynamic_config")
async def dynamic_config(_: Service, request: Request) -> Response:
    return answer(types.ClientDynamicConfigResponse(sample_cancel_enabled=True))


@route("GET", "/get_server_capabilities")
async def capabilities(service: Service, request: Request) -> Response:
    model = types.SupportedModel(model_name=service.options.name, max_context_length=service.max_context, trainable=True, sampleable=True)
    return answer(types.GetServerCapabilitiesResponse(supported_models=[model]))


@route("POST", "/create_session")
async def create_session(service: Service, request: Request) -> Response:
    return answer(types.CreateSessionResponse(session_id=service.sessions.create(await read(service, request, types.CreateSessionRequest))))


@route("POST", "/session_heartbeat")
async def heartbeat(service: Service, request: Request) -> Response:
    service.sessions.heartbeat((await read(service, request, types.SessionHeartbeatRequest)).session_id)
    return answer(types.SessionHeartbeatResponse())


@route("POST", "/sessions/{session}/finish")
async def finish(service: Service, request: Request) -> Response:
    given = await json_of(service, request)
    service.sessions.finish(request.path_params["session"], given)
    return NOTHING


@route("GET", "/sessions")
async def sessions(service: Service, request: Request) -> Response:
    limit, offset = page_of(request, 20)
    return answer(types.ListSessionsResponse(sessions=service.sessions.newest()[offset : offset + limit]))


@route("GET", "/sessions/{session}")
async def session(service: Service, request: Request) -> Response:
    name = request.path_params["session"]
    record = service.sessions.get(name)
    return answer(types.GetSessionResponse(training_run_ids=service.models.of_session(name), sampler_ids=service.samplers.of_session(name),
                                           user_metadata=record["metadata"], display_name=record["display_name"]))  # fmt: skip


@route("POST", "/telemetry")
async def telemetry(service: Service, request: Request) -> Response:
    await body_of(service, request)  # and dropped
    return answer(types.TelemetryResponse(status="accepted"))


def page_of(request: Request, limit: int) -> tuple[int, int]:
    found = {}
    for name, default, low in (("limit", limit, 1), ("offset", 0, 0)):
        text = request.query_params.get(name, str(default))
        if not text.isdecimal() or not low <= int(text) < 2**31:
            raise invalid(name, f"a number, {low} or more", text)
        found[name] = int(text)
    return found["limit"], found["offset"]


# ---- models


@route("POST", "/create_model")
async def create_model(service: Service, request: Request) -> Response:
    return later(service.create_model(await read(service, request, types.CreateModelRequest)))


@route("POST", "/get_info")
async def get_info(service: Service, request: Request) -> Response:
    return answer(service.get_info((await read(service, request, types.GetInfoRequest)).model_id))


@route("POST", "/unload_model")
async def unload_model(service: Service, request: Request) -> Response:
    return later(service.unload((await read(service, request, types.UnloadModelRequest)).model_id))


@route("POST", "/forward_backward")
async def forward_backward(service: Service, request: Request) -> Response:
    if wire.PROTOBUF not in request.headers.get("content-type", ""):
        raise invalid("Content-Type", wire.PROTOBUF, request.headers.get("content-type", ""), "clients before 0.20 send JSON")
    return later(service.run_pass(await body_of(service, request)))


@route("POST", "/optim_step")
async def optim_step(service: Service, request: Request) -> Response:
    return later(service.optim_step(await read(service, request, types.OptimStepRequest)))


@route("POST", "/create_custom_loss")
async def create_custom_loss(_: Service, request: Request) -> Response:
    raise unsupported("losses that run in the server")


# ---- weights


@route("POST", "/save_weights")
async def save_weights(service: Service, request: Request) -> Response:
    return later(service.save_weights(await read(service, request, types.SaveWeightsRequest)))


@route("POST", "/save_weights_for_sampler")
async def save_for_sampler(service: Service, request: Request) -> Response:
    return later(service.save_for_sampler(await read(service, request, types.SaveWeightsForSamplerRequest)))


@route("POST", "/save_weights_external")
async def save_external(service: Service, request: Request) -> Response:
    return later(service.save_external(await read(service, request, types.SaveWeightsExternalRequest)))


@route("POST", "/load_weights")
async def load_weights(service: Service, request: Request) -> Response:
    return later(service.load_weights(await read(service, request, types.LoadWeightsRequest)))


@route("POST", "/copy_weights")
async def copy_weights(service: Service, request: Request) -> Response:
    given = await read(service, request, types.CopyWeightsRequest)
    return answer(types.CopyWeightsResponse(tinker_path=await asyncio.to_thread(service.copy_weights, given)))


@route("POST", "/weights_info")
async def weights_info(service: Service, request: Request) -> Response:
    given = await json_of(service, request)
    if not isinstance(given, dict) or not isinstance(given.get("tinker_path"), str):
        raise invalid("body: tinker_path", "a text", repr(given))
    return answer(service.weights_info(given["tinker_path"]))


# ---- sampling and results


@route("POST", "/create_sampling_session")
async def create_sampling_session(service: Service, request: Request) -> Response:
    given = await read(service, request, types.CreateSamplingSessionRequest)
    return answer(types.CreateSamplingSessionResponse(sampling_session_id=service.create_sampler(given)))


@route("POST", "/join_sampling_session")
async def join_sampling_session(service: Service, request: Request) -> Response:
    given = await read(service, request, types.JoinSamplingSessionRequest)
    return answer(types.JoinSamplingSessionResponse(client_counter=service.samplers.join(given.sampling_session_id)))


@route("GET", "/samplers/{sampler}")
async def get_sampler(service: Service, request: Request) -> Response:
    return answer(service.get_sampler(request.path_params["sampler"]))


@route("POST", "/asample")
async def asample(service: Service, request: Request) -> Response:
    return later(service.sample(await read(service, request, types.SampleRequest)))


@route("POST", "/cancel_future")
async def cancel_future(service: Service, request: Request) -> Response:
    service.sampling.cancel((await read(service, request, types.FutureRetrieveRequest)).request_id)
    return NOTHING


@route("POST", "/retrieve_future")
async def retrieve_future(service: Service, request: Request) -> Response:
    """408: not yet; the client asks again at once."""
    name = (await read(service, request, types.FutureRetrieveRequest)).request_id
    future = await service.futures.wait(name, POLL_S)
    if not future.done:
        return JSONResponse({"type": "try_again", "request_id": name, "queue_state": "active"}, 408)
    service.futures.was_read(future)
    if future.error is not None:
        return JSONResponse({"error": str(future.error), "category": future.error.category})
    return Response(future.content, media_type=future.media)


# ---- runs and checkpoints


def path_of(request: Request) -> Path:
    p = request.path_params
    return parse_path(f"tinker://{p['run']}/{p['kind']}/{p['name']}")


@route("GET", "/training_runs")
async def training_runs(service: Service, request: Request) -> Response:
    return answer(service.runs(*page_of(request, 20)))


@route("GET", "/training_runs/{run}")
async def training_run(service: Service, request: Request) -> Response:
    return answer(service.run(service.models.get(request.path_params["run"])))


@route("GET", "/training_runs/{run}/checkpoints")
async def checkpoints(service: Service, request: Request) -> Response:
    return answer(service.checkpoints(request.path_params["run"]))


@route("GET", "/checkpoints")
async def all_checkpoints(service: Service, request: Request) -> Response:
    return answer(service.all_checkpoints(*page_of(request, 100)))


@route("DELETE", "/training_runs/{run}/checkpoints/{kind}/{name}")
async def delete_checkpoint(service: Service, request: Request) -> Response:
    service.store.delete(path_of(request))
    return NOTHING


@route("POST", "/training_runs/{run}/checkpoints/{kind}/{name}/publish")
async def publish(service: Service, request: Request) -> Response:
    service.store.change(path_of(request), public=True)
    return NOTHING


@route("DELETE", "/training_runs/{run}/checkpoints/{kind}/{name}/publish")
async def unpublish(service: Service, request: Request) -> Response:
    service.store.change(path_of(request), public=False)
    return NOTHING


@route("PUT", "/training_runs/{run}/checkpoints/{kind}/{name}/ttl")
async def set_ttl(service: Service, request: Request) -> Response:
    given = await json_of(service, request)
    ttl = given.get("ttl_seconds") if isinstance(given, dict) else given
    if ttl is not None and type(ttl) is not int:
        raise invalid("ttl_seconds", "seconds or null", repr(ttl))
    service.expire(path_of(request), check_ttl(ttl))
    return NOTHING


@route("GET", "/training_runs/{run}/checkpoints/{kind}/{name}/external_weights_urls")
async def links(service: Service, request: Request) -> Response:
    return answer(service.links(path_of(request), str(request.base_url)))


@route("GET", "/files/{run}/{kind}/{name}/{file:path}")
async def file(service: Service, request: Request) -> Response:
    until = request.query_params.get("until", "")
    if not until.isdecimal():
        raise invalid("until", "seconds", until)
    return FileResponse(service.file(path_of(request), request.path_params["file"], int(until), request.query_params.get("key", "")))
