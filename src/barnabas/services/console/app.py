"""The application: endpoints of all modules, the page, and the services behind them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from barnabas.services.console import (
    about,
    access,
    clients,
    docs,
    events,
    export,
    groups,
    inside,
    messages,
    openapi,
    overview,
    pipelines,
    resets,
    schemas,
    session,
    topic_changes,
    topics,
)
from barnabas.services.console.errors import Refusal, not_found
from barnabas.services.console.gate import Gate
from barnabas.services.console.guard import Guard
from barnabas.services.console.inside_sources import InsideSources
from barnabas.services.console.services import Services, Tasks
from barnabas.services.console.settings import Settings
from barnabas.services.console.web import PATH_PREFIX, Call, Endpoint, error_document, json_response, routes

#: Each module has a list ENDPOINTS.
MODULES: Final = (
    about,
    session,
    events,
    overview,
    topics,
    topic_changes,
    messages,
    export,
    groups,
    resets,
    access,
    clients,
    schemas,
    inside,
    pipelines,
    docs,
)
STATIC: Final = Path(__file__).parent / "static"


def create_app(settings: Settings) -> Starlette:
    tasks = Tasks()
    services = Services(
        settings=settings,
        tasks=tasks,
        guard=Guard(settings, tasks),
        inside=InsideSources(settings.inside),
    )
    services.closing.append(services.inside.close)
    endpoints: list[Endpoint] = [endpoint for module in MODULES for endpoint in module.ENDPOINTS]
    endpoints.append(_description(endpoints))
    services.live = {each.path: each for each in endpoints if each.live_s is not None}

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            tasks.group = group
            try:
                yield
            finally:
                await services.guard.close()
                await services.close()
                tasks.group = None

    app = Starlette(
        routes=[
            *routes(endpoints, services),
            Route(PATH_PREFIX + "/{rest:path}", _no_such_endpoint),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/{rest:path}", _page, methods=["GET"]),
        ],
        lifespan=lifespan,
        exception_handlers={405: _not_allowed},
    )
    app.state.services = services
    app.add_middleware(_RawPaths)
    app.add_middleware(Gate, settings=settings)  # outermost: it sees requests first and answers last
    return app


def _description(endpoints: list[Endpoint]) -> Endpoint:
    async def describe(call: Call) -> dict[str, Any]:
        return openapi.document(endpoints)

    return Endpoint(
        method="GET", path="/openapi.json", handler=describe, summary="This description (OpenAPI 3.1).", is_open=True
    )


async def _page(request: Request) -> Response:
    """Serve the same page for every path: the router in the browser selects the content."""
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


async def _no_such_endpoint(request: Request) -> Response:
    refusal = not_found(f"there is no {request.method} {request.url.path}; /api/openapi.json lists the endpoints")
    return json_response(error_document(refusal), refusal.status)


async def _not_allowed(request: Request, error: Exception) -> Response:
    refusal = Refusal(405, "METHOD_NOT_ALLOWED", f"{request.url.path} does not support {request.method}")
    return json_response(error_document(refusal), refusal.status)


Message = MutableMapping[str, Any]


class _RawPaths:
    """Match paths before they are decoded: a group's id may contain slashes, written as `%2F`. `web` decodes later."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] == "http" and scope.get("raw_path"):
            scope = {**scope, "path": scope["raw_path"].decode("latin-1")}
        await self._app(scope, receive, send)
