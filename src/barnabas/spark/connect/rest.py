"""A subset of Kafka Connect's REST: connectors, their states, configs and offsets, and plugins.

It is served by the HTTP layer of the services, with the application and the access rules of the schema registry: the patterns
of a rule stand for names of connectors here.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from barnabas import __version__
from barnabas.base.errors import ConfigError
from barnabas.base.hosts import is_loopback
from barnabas.services.http.errors import Refusal, bad_request
from barnabas.services.http.server import http_server, listen
from barnabas.services.registry.access import OPEN, Access, load
from barnabas.services.registry.web import Application, Request, Response, Route, json_response
from barnabas.spark.connect.classes import CLASSES
from barnabas.spark.connect.connector import ConnectorClass, find_class
from barnabas.spark.connect.herder import Herder, Managed
from barnabas.spark.connect.options import HIDDEN, ConnectorRefused, Option, Without, as_texts
from barnabas.spark.connect.states import State

_BODY_BYTES_MAX: Final = 1 << 20
_CONNECTIONS_MAX: Final = 500
_SHUTDOWN_S: Final = 5
_JSON: Final = "application/json"

Handler = Callable[[Request], Awaitable[Response]]


class Api:
    """The requests. Owner: the event loop."""

    def __init__(self, herder: Herder, access: Access, worker_id: str, cluster_id: str) -> None:
        self._herder = herder
        self._access = access
        self._worker_id = worker_id
        self._cluster_id = cluster_id

    def routes(self) -> list[Route]:
        one = "connectors/{name}"
        table: list[tuple[str, str, Handler]] = [
            ("GET", "", self._about),
            ("GET", "connectors", self._list),
            ("POST", "connectors", self._create),
            ("GET", one, self._info),
            ("DELETE", one, self._delete),
            ("GET", f"{one}/config", self._config),
            ("PUT", f"{one}/config", self._put_config),
            ("GET", f"{one}/status", self._status),
            ("GET", f"{one}/tasks", self._tasks),
            ("PUT", f"{one}/pause", self._wanting(State.PAUSED, 202)),
            ("PUT", f"{one}/resume", self._wanting(State.RUNNING, 202)),
            ("PUT", f"{one}/stop", self._wanting(State.STOPPED, 204)),
            ("POST", f"{one}/restart", self._restart),
            ("GET", f"{one}/offsets", self._offsets),
            ("DELETE", f"{one}/offsets", self._reset_offsets),
            ("PATCH", f"{one}/offsets", self._set_offsets),
            ("GET", "connector-plugins", self._plugins),
            ("PUT", "connector-plugins/{class}/config/validate", self._validate),
        ]
        return [Route(*each) for each in table]

    async def prepare(self, request: Request) -> Request:
        """Sign the client in."""
        request.user = await self._access.sign_in(request.headers.get("authorization"), request.peer_host)
        return request

    # -- rights -------------------------------------------------------------------------------------------------------

    def _readable(self, request: Request) -> tuple[str, Managed]:
        name = request.path["name"]
        if not self._access.may_read(request.user, name):
            raise Refusal(403, "FORBIDDEN", f"{request.user} may not read connector {name}")
        return name, self._herder.of(name)

    def _writable(self, request: Request, name: str) -> str:
        if not self._access.may_write(request.user, name):
            raise Refusal(403, "FORBIDDEN", f"{request.user} may not change connector {name}")
        return name

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _about(self, request: Request) -> Response:
        return _json({"version": __version__, "commit": "barnabas", "kafka_cluster_id": self._cluster_id})

    async def _list(self, request: Request) -> Response:
        shown = {
            name: managed
            for name, managed in sorted(self._herder.connectors.items())
            if self._access.may_read(request.user, name)
        }
        wanted = request.query.get("expand", [])
        if not wanted:
            return _json(list(shown))
        if unknown := sorted(set(wanted) - {"status", "info"}):
            raise bad_request(f"expand={unknown[0]} is not valid: use status or info")
        parts = {"status": self._status_of, "info": _info_of}
        return _json({name: {each: parts[each](name, managed) for each in wanted} for name, managed in shown.items()})

    async def _create(self, request: Request) -> Response:
        document = request.json()
        name, config = document.get("name"), document.get("config")
        if not isinstance(name, str) or not isinstance(config, dict):
            raise bad_request('a new connector is {"name": …, "config": {…}}')
        self._writable(request, name)
        if name in self._herder.connectors:
            raise Refusal(409, "CONFLICT", f"Connector {name} already exists")
        state = str(document.get("initial_state") or State.RUNNING).upper()
        if state not in (State.RUNNING, State.PAUSED, State.STOPPED):
            raise bad_request(f"initial_state {state!r} is not valid: use RUNNING, PAUSED or STOPPED")
        await self._herder.put(name, config, wanted=State(state))
        return _json(_info_of(name, self._herder.of(name)), 201)

    async def _info(self, request: Request) -> Response:
        return _json(_info_of(*self._readable(request)))

    async def _delete(self, request: Request) -> Response:
        await self._herder.delete(self._writable(request, request.path["name"]))
        return Response(b"", 204)

    async def _config(self, request: Request) -> Response:
        return _json(dict(self._readable(request)[1].described.config))

    async def _put_config(self, request: Request) -> Response:
        name = self._writable(request, request.path["name"])
        is_new = await self._herder.put(name, request.json())
        return _json(_info_of(name, self._herder.of(name)), 201 if is_new else 200)

    async def _status(self, request: Request) -> Response:
        return _json(self._status_of(*self._readable(request)))

    async def _tasks(self, request: Request) -> Response:
        name, managed = self._readable(request)
        return _json(
            [
                {"id": each, "config": {"flow": flow}}
                for each, flow in zip(_ids(name, managed), managed.life.flows, strict=True)
            ]
        )

    def _wanting(self, state: State, status: int) -> Handler:
        async def handle(request: Request) -> Response:
            await self._herder.want(self._writable(request, request.path["name"]), state)
            return Response(b"", status)

        return handle

    async def _restart(self, request: Request) -> Response:
        name = self._writable(request, request.path["name"])
        await self._herder.restart(name, only_failed=request.flag("onlyFailed"))
        if not request.query:
            return Response(b"", 204)
        return _json(self._status_of(name, self._herder.of(name)), 202)

    async def _offsets(self, request: Request) -> Response:
        name, _ = self._readable(request)
        return _json({"offsets": await self._herder.offsets(name)})

    async def _reset_offsets(self, request: Request) -> Response:
        await self._herder.reset_offsets(self._writable(request, request.path["name"]))
        return _json({"message": "The offsets for this connector have been reset successfully"})

    async def _set_offsets(self, request: Request) -> Response:
        name = self._writable(request, request.path["name"])
        await self._herder.set_offsets(name, request.json())
        return _json({"message": "The offsets for this connector have been altered successfully"})

    async def _plugins(self, request: Request) -> Response:
        return _json([{"class": each.name, "type": each.kind, "version": __version__} for each in CLASSES])

    async def _validate(self, request: Request) -> Response:
        of = find_class(request.path["class"], CLASSES)
        if of is None:
            raise Refusal(404, "NOT_FOUND", f"there is no plugin {request.path['class']} here")
        try:
            config = as_texts(request.json())
        except ConnectorRefused as error:
            raise bad_request(str(error)) from None
        self._writable(request, config.get("name", ""))
        _, problems = self._herder.problems_of({"connector.class": of.name, **config})
        return _json(_validation(of, config, {each.option: each.message for each in problems}))

    # -- documents ----------------------------------------------------------------------------------------------------

    def _status_of(self, name: str, managed: Managed) -> dict[str, Any]:
        life = managed.life
        connector: dict[str, Any] = {"state": life.state, "worker_id": self._worker_id}
        if life.trace:
            connector["trace"] = life.trace
        tasks = [
            {"id": number, "state": state, "worker_id": self._worker_id}
            | ({"trace": life.traces[flow]} if flow in life.traces else {})
            for number, (flow, state) in enumerate(life.flows.items())
        ]
        return {"name": name, "connector": connector, "tasks": tasks, "type": _kind(managed)}


def _validation(of: ConnectorClass, config: dict[str, str], messages: dict[str, str]) -> dict[str, Any]:
    """Return the options with their values and errors, as Connect's tools show them."""
    rows = {row.name: row for row in of.all_rows}
    configs = []
    for name in dict.fromkeys([*rows, *messages]):
        row = rows.get(name)
        is_option = isinstance(row, Option)
        is_secret = isinstance(row, Option) and row.is_secret
        value = config.get(name, row.default if isinstance(row, Option) else None)
        configs.append(
            {
                "definition": {
                    "name": name,
                    "type": "PASSWORD" if is_secret else "STRING",
                    "required": isinstance(row, Option) and row.needed,
                    "default_value": row.default if isinstance(row, Option) else None,
                    "importance": "HIGH" if is_option else "LOW",
                    "documentation": row.does
                    if isinstance(row, Option)
                    else row.why
                    if isinstance(row, Without)
                    else "",
                    "group": None,
                    "width": "NONE",
                    "display_name": name,
                    "dependents": [],
                    "order": -1,
                },
                "value": {
                    "name": name,
                    "value": HIDDEN if is_secret and value is not None else value,
                    "recommended_values": [],
                    "errors": [messages[name]] if name in messages else [],
                    "visible": True,
                },
            }
        )
    return {"name": of.name, "error_count": len(messages), "groups": [], "configs": configs}


def _info_of(name: str, managed: Managed) -> dict[str, Any]:
    return {
        "name": name,
        "config": dict(managed.described.config),
        "tasks": _ids(name, managed),
        "type": _kind(managed),
    }


def _ids(name: str, managed: Managed) -> list[dict[str, Any]]:
    return [{"connector": name, "task": number} for number in range(len(managed.life.flows))]


def _kind(managed: Managed) -> str:
    return "unknown" if managed.of is None else managed.of.kind


def _json(document: object, status: int = 200) -> Response:
    response = json_response(document, status)
    response.content_type = _JSON
    return response


# -- the server -------------------------------------------------------------------------------------------------------


class RestServer:
    """The listener. It is opened before Spark starts, so that a port in use is reported at once."""

    def __init__(
        self, host: str, port: int, access: Access = OPEN, certificate: str | None = None, key: str | None = None
    ) -> None:
        """:raises ConfigError: if any client could reach it, and none would have to sign in."""
        if access.is_open and not is_loopback(host):
            raise ConfigError(
                f"--rest-host {host} can be reached from other machines, and a client that changes connectors can read this "
                "machine's files and databases: name the users and their rights with --access FILE.toml"
            )
        self.access = access
        self._host = host
        self._tls = (certificate, key)
        self._socket: socket.socket = listen(host, port)

    @property
    def url(self) -> str:
        scheme = "https" if self._tls[0] else "http"
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{scheme}://{host}:{self._socket.getsockname()[1]}"

    async def run(self, herder: Herder, stopping: asyncio.Event, cluster_id: str) -> None:
        api = Api(herder, self.access, self.url.partition("://")[2], cluster_id)
        application = Application(
            api.routes(),
            prepare=api.prepare,
            body_bytes_max=_BODY_BYTES_MAX,
            only_names=() if self.access.is_open else None,
        )
        server = http_server(
            application,
            lifespan="off",
            certificate=self._tls[0],
            key=self._tls[1],
            connections_max=_CONNECTIONS_MAX,
            shutdown_s=_SHUTDOWN_S,
        )
        keys = asyncio.create_task(self.access.run(), name="keys of signed tokens")
        serving = asyncio.create_task(server.serve(sockets=[self._socket]), name="http")
        try:
            await stopping.wait()
            server.should_exit = True
            await asyncio.wait([serving], timeout=_SHUTDOWN_S + 5)
        finally:
            for task in (serving, keys):
                task.cancel()

    def close(self) -> None:
        self._socket.close()


def access_of(file: Path | None) -> Access:
    """Return the rights of a file, or those of everybody."""
    return OPEN if file is None else load(file)
