"""The registry's HTTP: an ASGI application with a table of routes, and Confluent's content types and errors.

Paths are matched before they are decoded: a subject may contain slashes, written as `%2F`.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from barnabas.services.http import errors as http_errors
from barnabas.services.http.bodies import Receive, check_content_type, json_object, read_body
from barnabas.services.http.origins import check_host, check_origin
from barnabas.services.registry.content import BadContent
from barnabas.services.registry.errors import Refusal

log = logging.getLogger(__name__)

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
#: Content types that clients may send and accept, the preferred one first.
_JSON_TYPES: Final = (CONTENT_TYPE, "application/vnd.schemaregistry+json", "application/json")
_TAKEN_TYPES: Final = (*_JSON_TYPES, "application/octet-stream")

Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(slots=True)
class Request:
    method: str
    #: The target as received, for forwarding.
    raw_target: str
    #: Path segments, decoded; empty ones are left out.
    segments: tuple[str, ...]
    query: dict[str, list[str]]
    headers: Mapping[str, str]
    #: Address of the client.
    peer_host: str = ""
    body: bytes = b""
    #: The user who signed in; None if signing in is not required.
    user: str | None = None
    #: Parameters of the path, by their names in the route.
    path: dict[str, str] = field(default_factory=dict)

    def text(self, name: str, default: str = "") -> str:
        return self.query.get(name, [default])[0]

    def flag(self, name: str) -> bool:
        return self.text(name).lower() == "true"

    def number(self, name: str, default: int) -> int:
        try:
            return int(self.text(name, str(default)))
        except ValueError:
            raise Refusal(400, 400, f"{name} is not a number") from None

    def page(self, items: Sequence[Any]) -> list[Any]:
        """Apply `offset` and `limit` to a list. A limit of zero or less means no limit."""
        offset, limit = max(self.number("offset", 0), 0), self.number("limit", -1)
        return list(items[offset:] if limit <= 0 else items[offset : offset + limit])

    def json(self) -> dict[str, Any]:
        if not self.body:
            raise Refusal(422, 422, "the request has no body")
        return json_object(self.body)


@dataclass(slots=True)
class Response:
    body: bytes
    status: int = 200
    content_type: str = CONTENT_TYPE
    headers: dict[str, str] = field(default_factory=dict)


def json_response(document: object, status: int = 200) -> Response:
    return Response(json.dumps(document, separators=(",", ":")).encode(), status)


Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    #: For example `subjects/{subject}/versions`.
    pattern: str
    handler: Handler


class Application:
    """Routes requests. `prepare` sees every request first: it signs users in and rewrites paths."""

    def __init__(
        self,
        routes: Sequence[Route],
        *,
        prepare: Callable[[Request], Awaitable[Request]],
        body_bytes_max: int,
        only_names: Collection[str] | None,
    ) -> None:
        """`only_names`: the Host header must be one of these hosts or a loopback name. None: any host."""
        self._routes: dict[int, list[tuple[tuple[str, ...], Route]]] = {}
        for route in routes:
            parts = tuple(part for part in route.pattern.split("/") if part)
            self._routes.setdefault(len(parts), []).append((parts, route))
        self._prepare = prepare
        self._body_bytes_max = body_bytes_max
        self._only_names = only_names

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", scope["type"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        content_type = _acceptable(headers.get("accept", ""))
        try:
            response = await self._answer(scope, headers, receive, content_type)
        except Refusal as refusal:
            response = json_response({"error_code": refusal.code, "message": refusal.message}, refusal.status)
            if refusal.status == 401:
                response.headers["www-authenticate"] = 'Basic realm="schema registry", Bearer realm="schema registry"'
        except http_errors.Refusal as refusal:
            response = json_response({"error_code": refusal.status, "message": refusal.message}, refusal.status)
        except BadContent as error:
            response = json_response({"error_code": 422, "message": str(error)}, 422)
        except Exception:
            log.exception("%s %s", scope["method"], scope["path"])
            response = json_response({"error_code": 500, "message": "Internal Server Error"}, 500)
        if response.content_type == CONTENT_TYPE and content_type is not None:
            response.content_type = content_type
        await _send(response, send, with_body=scope["method"] != "HEAD")

    async def _answer(
        self, scope: dict[str, Any], headers: Mapping[str, str], receive: Receive, content_type: str | None
    ) -> Response:
        if content_type is None:
            raise Refusal(406, 406, "HTTP 406 Not Acceptable")
        if self._only_names is not None:
            check_host(headers, self._only_names)
        check_origin(headers)
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        query: bytes = scope["query_string"]
        request = Request(
            method="GET" if scope["method"] == "HEAD" else scope["method"],
            raw_target=(raw_path + (b"?" + query if query else b"")).decode("latin-1"),
            segments=tuple(unquote(part) for part in raw_path.decode("latin-1").split("/") if part),
            query=parse_qs(query.decode("latin-1"), keep_blank_values=True),
            headers=headers,
            peer_host=(scope.get("client") or ("",))[0],
        )
        request = await self._prepare(request)
        route = self._route(request)
        request.body = await read_body(headers, receive, bytes_max=self._body_bytes_max)
        if request.body:
            check_content_type(headers, _TAKEN_TYPES)
        return await route.handler(request)

    def _route(self, request: Request) -> Route:
        is_known = False
        for parts, route in self._routes.get(len(request.segments), ()):
            found: dict[str, str] = {}
            for part, segment in zip(parts, request.segments, strict=True):
                if part.startswith("{"):
                    found[part[1:-1]] = segment
                elif part != segment:
                    break
            else:
                is_known = True
                if route.method == request.method:
                    request.path = found
                    return route
        if is_known:
            raise Refusal(405, 405, "HTTP 405 Method Not Allowed")
        raise Refusal(404, 404, "HTTP 404 Not Found")


def _acceptable(accept: str) -> str | None:
    """Return the content type of the answer; None if the client accepts none of the supported types."""
    wanted = [part.split(";")[0].strip().lower() for part in accept.split(",") if part.strip()]
    if not wanted or any(each.startswith("*/") or each == "application/*" for each in wanted):
        return CONTENT_TYPE
    return next((each for each in _JSON_TYPES if each in wanted), None)


async def _send(response: Response, send: Send, *, with_body: bool) -> None:
    headers = {
        "content-type": response.content_type,
        "content-length": str(len(response.body)),
        **response.headers,
    }
    await send(
        {
            "type": "http.response.start",
            "status": response.status,
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": response.body if with_body else b""})
