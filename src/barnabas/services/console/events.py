"""`/api/events`: live answers as server-sent events. `watch` names live GETs with their queries."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from starlette.responses import StreamingResponse
from starlette.routing import compile_path

from barnabas.services.console.collector import Watcher
from barnabas.services.console.errors import Refusal, bad_request
from barnabas.services.console.web import PATH_PREFIX, TEXT, Call, Endpoint, encode, error_document

#: Limit of paths that one page may watch.
_WATCH_MAX: Final = 20
#: These headers keep proxies from buffering events.
EVENT_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def events(call: Call) -> StreamingResponse:
    assert call.request is not None
    wanted = dict.fromkeys(call.request.query_params.getlist("watch"))
    if not wanted or len(wanted) > _WATCH_MAX:
        raise bad_request(f"give watch=/api/… one to {_WATCH_MAX} times")
    asks = {key: _repetition(call, key) for key in wanted}
    watcher, collector = Watcher(), call.cluster.collector
    collector.check_room(asks)

    async def stream() -> AsyncIterator[bytes]:
        try:
            for key, (ask, every_s) in asks.items():
                collector.watch(watcher, key, ask, every_s)
            async for event in watcher.events(call.user.is_present):
                yield event
        except Refusal as refusal:  # others began to watch after this request was accepted
            yield b"event: failed\ndata: " + encode(error_document(refusal)) + b"\n\n"
        finally:
            collector.leave(watcher, asks)

    return StreamingResponse(stream(), media_type="text/event-stream", headers=EVENT_HEADERS)


def _repetition(call: Call, key: str) -> tuple[Callable[[], Awaitable[Any]], float]:
    """Return a function that repeats the request `key` (a path with its query), and its interval."""
    path, _, query = key.partition("?")
    if "\n" in key or "\r" in key:
        raise bad_request("a watched path is one line")
    for pattern, endpoint in call.services.live.items():
        match = compile_path(PATH_PREFIX + pattern)[0].match(path)
        if match is not None and endpoint.live_s is not None:
            again = Call(
                services=call.services,
                user=call.user,
                path={name: unquote(value) for name, value in match.groupdict().items()},
                query=dict(parse_qsl(query, keep_blank_values=True)),
            )
            return partial(endpoint.handler, again), endpoint.live_s
    raise bad_request(f"{path} cannot be watched")


ENDPOINTS = [
    Endpoint(
        method="GET",
        path="/events",
        handler=events,
        summary="Server-sent events: the answers of live GETs as they change. watch may be given several times.",
        query={"watch": TEXT},
        content_type="text/event-stream",
    )
]
