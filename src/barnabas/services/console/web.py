"""The console's HTTP: endpoints that describe themselves, JSON in, JSON out, one format of errors."""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from barnabas.base.errors import BarnabasError
from barnabas.client.errors import ClientError
from barnabas.services.console.errors import Refusal, bad_request, refusal_of
from barnabas.services.http.bodies import BODY_S, check_content_type, json_object, read_body
from barnabas.services.registry.values import json_values

if TYPE_CHECKING:
    from barnabas.services.console.cluster import ConsoleCluster
    from barnabas.services.console.registered import Registered
    from barnabas.services.console.services import Services

log = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 8 * 1024 * 1024
#: Limit of a body before sign-in.
_OPEN_BODY_BYTES_MAX: Final = 64 * 1024
_OPEN_BODY_S: Final = 10
#: A JSON schema in OpenAPI's format.
Schema = Mapping[str, Any]
TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "integer"}
FLAG: Final[Schema] = {"type": "boolean"}
PATH_PREFIX: Final = "/api"


@dataclass(frozen=True, slots=True)
class User:
    """The user of a request. `name` appears in the log of changes."""

    name: str
    #: None before sign-in.
    own_cluster: "ConsoleCluster | None"
    #: The schema registry with the user's rights; None if the console has no registry.
    registered: "Registered | None" = None
    #: Records a use of the session. Returns False if it has ended; then streams must end, too.
    is_present: Callable[[], bool] = lambda: True


@dataclass(slots=True)
class Call:
    """One request, or one repetition of a live one, which has no `request`."""

    services: "Services"
    user: User
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    request: Request | None = None

    @property
    def cluster(self) -> "ConsoleCluster":
        assert self.user.own_cluster is not None, "an open endpoint asks nothing of the cluster"
        return self.user.own_cluster

    def text(self, name: str, default: str = "") -> str:
        return self.query.get(name, default)

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() in ("1", "true", "yes")

    def number(self, name: str, default: int, *, low: int = 0, high: int = 2**63 - 1) -> int:
        return whole(self.query.get(name, default), name, low=low, high=high)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return a parameter of the query; the default is the first choice."""
        value = self.query.get(name) or choices[0]
        if value not in choices:
            raise bad_request(f"{name}={value} is not valid: use {', '.join(choices)}")
        return value

    def given(self, name: str, kind: type | tuple[type, ...] = str) -> Any:
        """Return a required member of the body."""
        value = self.body.get(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise bad_request(f"the body needs {name!r}")
        return value


def whole(value: object, name: str, *, low: int = 0, high: int = 2**63 - 1) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise bad_request(f"{name}={value} is not a whole number") from None
    if not low <= number <= high:
        raise bad_request(f"{name}={number} must lie between {low} and {high}")
    return number


#: Returns a document to encode as JSON, or a response.
Handler = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    method: str
    #: Below `/api`: `/topics/{topic}`.
    path: str
    handler: Handler
    #: One line for OpenAPI.
    summary: str
    query: Mapping[str, Schema] = field(default_factory=dict)
    body: Schema | None = None
    #: Interval in seconds if the endpoint can be watched through `/api/events`.
    live_s: float | None = None
    #: Content type of the answer.
    content_type: str = "application/json"
    #: Whether it can be used before sign-in.
    is_open: bool = False

    @property
    def changes(self) -> bool:
        """Whether the request is a change, which the guard checks: everything except GET."""
        return self.method != "GET" and not self.is_open


def encode(document: object) -> bytes:
    """Encode as JSON in UTF-8. Half of a surrogate pair, which UTF-8 cannot encode, is written as JSON's escape: `\\ud800`."""
    return json_values.write(document).encode("utf-8", "backslashreplace")


def json_response(document: object, status: int = 200) -> Response:
    return Response(encode(document), status, media_type="application/json")


def refused(refusal: Refusal) -> Response:
    response = json_response(error_document(refusal), refusal.status)
    if refusal.retry_s is not None:
        response.headers["Retry-After"] = str(math.ceil(refusal.retry_s))
    return response


def error_document(refusal: Refusal) -> dict[str, Any]:
    return {"error": {"code": refusal.code, "message": refusal.message}}


def refusal_for(error: Exception, what: str) -> Refusal:
    """Return the answer to a failure of a handler; unexpected errors are logged, and answered with INTERNAL."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ClientError):
        return refusal_of(error)
    if isinstance(error, BarnabasError):
        return bad_request(str(error))
    log.error("%s", what, exc_info=error)
    return Refusal(500, "INTERNAL", "the console failed; its log says why")


def routes(endpoints: Sequence[Endpoint], services: "Services") -> list[Route]:
    """Create one route per path for its endpoints."""
    by_path: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, []).append(endpoint)
    return [
        Route(
            PATH_PREFIX + path,
            _answering({each.method: each for each in group}, services),
            methods=[each.method for each in group],
        )
        for path, group in by_path.items()
    ]


def _answering(by_method: Mapping[str, Endpoint], services: "Services") -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        endpoint = by_method["GET" if request.method == "HEAD" else request.method]
        try:
            return await _respond(endpoint, request, services)
        except Exception as error:
            refusal = refusal_for(error, f"{request.method} {request.url.path}")
            return refused(refusal)

    return answer


async def _respond(endpoint: Endpoint, request: Request, services: "Services") -> Response:
    user = await services.guard.identify(request, endpoint)
    call = Call(
        services=services,
        user=user,
        path={name: unquote(value) for name, value in request.path_params.items()},
        query=dict(request.query_params),
        body=await _body(request, is_open=endpoint.is_open) if endpoint.method != "GET" else {},
        request=request,
    )
    if endpoint.changes:
        answer = await services.guard.changing(endpoint, call)
    else:
        answer = await endpoint.handler(call)
    return answer if isinstance(answer, Response) else json_response(answer)


async def _body(request: Request, *, is_open: bool) -> Mapping[str, Any]:
    bytes_max, timeout_s = (_OPEN_BODY_BYTES_MAX, _OPEN_BODY_S) if is_open else (BODY_BYTES_MAX, BODY_S)
    data = await read_body(request.headers, request.receive, bytes_max=bytes_max, timeout_s=timeout_s)
    if not data:
        return {}
    check_content_type(request.headers, ("application/json",))
    return json_object(data)
