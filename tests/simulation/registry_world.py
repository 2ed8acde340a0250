"""Three instances of the schema registry on a cluster with faults: elections, imports, references, and a hostile user.

The registry is the code that ships, without HTTP: requests cross the simulated network as lines of JSON and reach its
application as ASGI calls, also those that one instance forwards to the primary. Instances are killed and paused.

Every acknowledged schema stays: at once at the instance that answered, and in the end at all of them, under its id, subject and
version. An id never means two schemas, and no user changes the subjects of another one.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from barnabas.client import asynchronous
from barnabas.client.config import ClientConfig
from barnabas.client.errors import ClientError
from barnabas.services.registry import errors
from barnabas.services.registry.access import access_of, hash_token
from barnabas.services.registry.api import Api
from barnabas.services.registry.election import Identity
from barnabas.services.registry.forwarding import FORWARDED, OFFSET, Unreachable
from barnabas.services.registry.node import Node, NodeConfig
from barnabas.services.registry.web import Request, Response
from barnabas.testing.simulation.process import Process
from tests.simulation.blocking_code import simulate
from tests.simulation.cluster import SETTLE_S, SimCluster
from tests.simulation.load import Client
from tests.simulation.scenario import Scenario

PORT: Final = 8081
_FAULTS = {
    "kill": 3, "kill_leader": 3, "kill_controller": 1, "restart": 2, "pause": 2, "isolate": 2, "cut_link": 2,
    "reset_connections": 3, "slow_network": 1,
}  # fmt: skip
_STAYS = "a schema that was acknowledged stays"
ALICE, MALLORY, AUDITOR = "alice", "mallory", "auditor"
_ACCESS = {
    "tokens": {name: hash_token(name) for name in (ALICE, MALLORY, AUDITOR)},
    "rules": [
        {"users": [ALICE], "read": ["orders-*"], "write": ["orders-*"]},
        {"users": [MALLORY], "read": ["mallory-*"], "write": ["mallory-*"]},
        {"users": [AUDITOR], "read": ["*"]},
    ],
}

Answer = tuple[int, Any]


class _Lines(asyncio.Protocol):
    """Calls `arrived` with each line."""

    def __init__(self, arrived: Callable[["_Lines", bytes], None], lost: Callable[[], None] = lambda: None) -> None:
        self._arrived, self._lost, self._data = arrived, lost, b""
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._data = (self._data + data).split(b"\n")
        for line in lines:
            self._arrived(self, line)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()


async def ask(host: str, document: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
    """Send a request to an instance. Raises `OSError` if it gives no answer, `Unreachable` if it did not get the request."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()

    def lost() -> None:
        if not answer.done():
            answer.set_exception(ConnectionResetError("lost"))

    def arrived(_: _Lines, line: bytes) -> None:
        if not answer.done():
            answer.set_result(line)

    try:
        async with asyncio.timeout(2.0):
            transport, _ = await loop.create_connection(lambda: _Lines(arrived, lost), host, PORT)
    except (OSError, TimeoutError) as error:
        raise Unreachable(f"{host}: {error!r}") from None
    try:
        transport.write(json.dumps(document).encode() + b"\n")
        async with asyncio.timeout(timeout_s):
            found: dict[str, Any] = json.loads(await answer)
            return found
    except TimeoutError:
        raise ConnectionError("no answer in time") from None
    finally:
        transport.abort()


class _Forwarder:
    async def send(self, primary: Identity, request: Request) -> Response:
        headers = {name: request.headers[name] for name in ("authorization", "content-type") if name in request.headers}
        document = {
            "method": request.method,
            "target": request.raw_target,
            "headers": {**headers, FORWARDED: "true"},
            "body": request.body.decode(),
        }
        try:
            answer = await ask(primary.host, document, timeout_s=20.0)
        except OSError as error:
            raise errors.forwarding_failed(f"{primary.host}: {error}") from error
        kept = {OFFSET: answer["headers"][OFFSET]} if OFFSET in answer["headers"] else {}
        return Response(answer["body"].encode(), answer["status"], headers=kept)

    async def close(self) -> None:
        """Nothing is open."""


class Instance(Process):
    def __init__(self, cluster: "RegistryWorld", number: int) -> None:
        super().__init__(cluster.world, cluster.network, f"registry{number}")
        self._cluster = cluster
        self.is_ready = False

    async def main(self) -> None:
        self.is_ready = False
        config = NodeConfig(
            client=ClientConfig(
                bootstrap=self._cluster.bootstrap, client_id=self.name, request_timeout_ms=3_000, api_timeout_ms=20_000,
                connect_timeout_ms=2_000,
            ),
            identity=Identity(host=self.name, port=PORT),
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_000,
            write_timeout_ms=8_000,
            clock=self.clock,
        )  # fmt: skip
        node = Node(config)
        self.app = Api(node, _Forwarder(), access_of(_ACCESS, "rules")).application()  # type: ignore[arg-type]
        await node.run(self._ready)

    def _ready(self) -> None:
        assert self.loop is not None
        self.is_ready = True
        self.world.note(self.name, "is ready")
        self.loop.create_task(self._serve())

    async def _serve(self) -> None:
        assert self.loop is not None
        self.host.serve(self.loop, lambda: _Lines(self._asked), PORT)

    def _asked(self, line: _Lines, data: bytes) -> None:
        assert self.loop is not None
        self.loop.create_task(self._answer(line, json.loads(data)))

    async def _answer(self, line: _Lines, document: dict[str, Any]) -> None:
        path, _, query = document["target"].partition("?")
        scope = {
            "type": "http",
            "method": document["method"],
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in document["headers"].items()],
            "client": ("client", 1),
        }
        answer: dict[str, Any] = {"headers": {}, "body": ""}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": document["body"].encode()}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer["status"] = message["status"]
                answer["headers"] = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                answer["body"] = message["body"].decode()

        await self.app(scope, receive, send)
        line.transport.write(json.dumps(answer).encode() + b"\n")


@dataclass(frozen=True)
class Known:
    """An acknowledged registration."""

    id: int
    schema: str
    #: The instance that has answered.
    where: str


class RegistryUser(Client):
    user = ALICE

    def __init__(self, cluster: "RegistryWorld", name: str) -> None:
        super().__init__(cluster, name)
        self.registry = cluster

    async def request(self, where: str, method: str, target: str, body: object = None) -> Answer | None:
        """Return status and document; None if the outcome is not known."""
        headers = {"authorization": f"Bearer {self.user}", "content-type": "application/json"}
        document = {"method": method, "target": target, "headers": headers}
        try:
            answer = await ask(where, {**document, "body": "" if body is None else json.dumps(body)}, timeout_s=30.0)
        except (Unreachable, OSError):
            await self.pause(0.05, 0.3)
            return None
        if answer["status"] == 500 and "Internal Server Error" in answer["body"]:
            self.world.violate("no exception is left unhandled", f"{where}: {method} {target}: {answer['body']}")
        return answer["status"], json.loads(answer["body"])

    def anywhere(self) -> str:
        return self.chance.choice(self.registry.instances).name

    async def get(self, where: str, target: str) -> Any:
        """Return the document. Ask until there is an answer other than an error of the service."""
        while True:
            answer = await self.request(where, "GET", target)
            if answer is not None and answer[0] < 500:
                return answer


def schema_of(subject: str, count: int) -> str:
    fields = [{"name": f"f{number}", "type": "int", "default": 0} for number in range(count)]
    return json.dumps({"type": "record", "name": subject.replace("-", "_"), "fields": fields})


class Registrant(RegistryUser):
    """Registers, reads back, refers, deletes."""

    def __init__(self, cluster: "RegistryWorld", name: str) -> None:
        super().__init__(cluster, name)
        self.subject = f"orders-{name}"
        self.fields = 1
        #: Version -> what was acknowledged; and the ids of all schemas, also of deleted ones.
        self.known: dict[int, Known] = {}

    async def main(self) -> None:
        while not self.ending:
            await self.chance.choice([self._grow, self._grow, self._again, self._read, self._refer, self._delete])()
            await self.pause(0.05, 0.6)

    async def _grow(self) -> None:
        self.fields += 1
        await self._register(self.subject, schema_of(self.subject, self.fields))

    async def _again(self) -> None:
        await self._register(self.subject, schema_of(self.subject, self.chance.randint(1, self.fields)))

    async def _register(self, subject: str, schema: str, **more: object) -> bool:
        """Return whether the schema was acknowledged."""
        where = self.anywhere()
        answer = await self.request(where, "POST", f"/subjects/{subject}/versions", {"schema": schema, **more})
        if answer is None or answer[0] != 200:
            if answer is not None and answer[0] < 500 and answer[0] != 409:
                self.world.violate("a schema that may be registered is", f"{subject} at {where}: {answer}")
            return False
        document = answer[1]
        self.registry.acknowledged(subject, document["id"], schema, where)
        if subject == self.subject:
            self.known[document["version"]] = Known(document["id"], schema, where)
        await self._read_at(where, document["id"], schema)
        return True

    async def _read(self) -> None:
        if self.known:
            known = self.chance.choice(list(self.known.values()))
            await self._read_at(known.where, known.id, known.schema)

    async def _read_at(self, where: str, schema_id: int, schema: str) -> None:
        """Read at the instance that has acknowledged the schema: it has it, also after a restart."""
        answer = await self.request(where, "GET", f"/schemas/ids/{schema_id}")
        if answer is None or answer[0] >= 500:
            return
        if answer[0] != 200 or json.loads(answer[1]["schema"]) != json.loads(schema):
            self.world.violate(_STAYS, f"{where} has acknowledged id {schema_id} as {schema}, and answers {answer}")

    async def _refer(self) -> None:
        if not self.known:
            return
        version, known = self.chance.choice(list(self.known.items()))
        name = self.subject.replace("-", "_")
        schema = json.dumps({"type": "record", "name": f"r{version}", "fields": [{"name": "of", "type": name}]})
        references = [{"name": name, "subject": self.subject, "version": version}]
        subject = f"{self.subject}-of-{version}"
        if await self._register(subject, schema, references=references):
            answer = await self.request(self.anywhere(), "DELETE", f"/subjects/{self.subject}/versions/{version}")
            if answer is not None and answer[0] == 200:
                self.world.violate("a schema that is referred to stays", f"{self.subject} {version}, id {known.id}")

    async def _delete(self) -> None:
        """Delete the last version, which no schema refers to, if that is so."""
        if len(self.known) < 4:
            return
        version = max(self.known)
        known = self.known.pop(version)
        answer = await self.request(self.anywhere(), "DELETE", f"/subjects/{self.subject}/versions/{version}")
        if answer is not None and answer[0] == 422:
            self.known[version] = known


class Mallory(RegistryUser):
    """Tries to write subjects of others, to read them through references, and to take their ids."""

    user = MALLORY

    async def main(self) -> None:
        number = 0
        while not self.ending:
            number += 1
            where, victim = self.anywhere(), self.chance.choice(self.registry.registrants).subject
            schema = json.dumps({"type": "enum", "name": f"e{number}", "symbols": ["A"]})
            hostile: list[tuple[str, str, object]] = [
                ("POST", f"/subjects/{victim}/versions", {"schema": schema}),
                ("DELETE", f"/subjects/{victim}", None),
                ("PUT", f"/mode/{victim}", {"mode": "IMPORT"}),
                ("PUT", f"/config/{victim}", {"compatibility": "NONE"}),
                ("PUT", "/mode", {"mode": "READONLY"}),
                ("GET", f"/subjects/{victim}/versions", None),
                ("POST", "/subjects/mallory-r/versions", {
                    "schema": schema_of("m", 1).replace('"int"', json.dumps(victim.replace("-", "_"))),
                    "references": [{"name": victim.replace("-", "_"), "subject": victim, "version": 1}],
                }),
            ]  # fmt: skip
            method, target, body = self.chance.choice(hostile)
            answer = await self.request(where, method, target, body)
            if answer is not None and answer[0] not in (401, 403) and answer[0] < 500:
                self.world.violate(
                    "no user changes or reads the subjects of another one", f"{method} {target}: {answer}"
                )
            await self._import(where, schema)
            await self.pause(0.1, 1.0)

    async def _import(self, where: str, schema: str) -> None:
        subject = "mallory-imports"
        await self.request(where, "PUT", f"/mode/{subject}?force=true", {"mode": "IMPORT"})
        wanted = self.chance.choice([1, 2, 3, 7, 2**31 - 1, 2**30 + 1_000_001, len(self.registry.ids) + 1])
        version = self.chance.randint(1, 10_000)
        body = {"schema": schema, "id": wanted, "version": version}
        answer = await self.request(where, "POST", f"/subjects/{subject}/versions", body)
        if answer is not None and answer[0] == 200:
            self.registry.acknowledged(subject, answer[1]["id"], schema, where)


class RegistryAuditor(RegistryUser):
    """Compares all instances with each other, and with what was acknowledged."""

    user = AUDITOR
    is_done = False

    async def main(self) -> None:
        lists = {}
        for instance in self.registry.instances:
            _, found = await self.get(instance.name, "/schemas?deleted=true")
            lists[instance.name] = {(each["subject"], each["version"]): (each["id"], each["schema"]) for each in found}
        first, *others = lists.values()
        if any(each != first for each in others):
            self.world.violate("all instances of a registry agree", json.dumps({k: len(v) for k, v in lists.items()}))
        for user in self.registry.registrants:
            for version, known in user.known.items():
                if first.get((user.subject, version), (0, ""))[0] != known.id:
                    self.world.violate(
                        _STAYS, f"{user.subject} {version} is {first.get((user.subject, version))}, was {known}"
                    )
        for schema_id, schema in self.registry.ids.items():
            for instance in self.registry.instances:
                status, document = await self.get(instance.name, f"/schemas/ids/{schema_id}")
                if status == 404 and schema_id not in {each for each, _ in first.values()}:
                    continue  # every version with it was deleted
                if status != 200 or json.loads(document["schema"]) != json.loads(schema):
                    self.world.violate(_STAYS, f"{instance.name}: id {schema_id} was {schema}, is {status} {document}")
        self.note(f"{len(self.registry.ids)} ids are what was acknowledged")
        self.is_done = True


class RegistryWorld(SimCluster):
    def __init__(self, seed: int) -> None:
        scenario = replace(
            Scenario.of(seed, has_rare=False),
            seconds=40.0,
            segment_bytes=1_048_576,
            faults=_FAULTS,
            fault_every_s=(1.0, 5.0),
            producers=0, transactional=0, readers=0, group_members=0, guests=0, has_acks_one=False, has_keeper=False,
            has_admin=False, has_table=False, modern_members=0, has_mixed_group=False, transformers=0, has_pledger=False,
            has_coming=False, has_reckless=False,
        )  # fmt: skip
        super().__init__(seed, scenario)
        simulate([asynchronous], self.world)
        self.instances = [Instance(self, number) for number in (1, 2, 3)]
        self.registrants = [Registrant(self, "ann"), Registrant(self, "bob")]
        #: Id -> the schema that was acknowledged with it.
        self.ids: dict[int, str] = {}
        self._is_over = self._is_audited = False

    def acknowledged(self, subject: str, schema_id: int, schema: str, where: str) -> None:
        self.oracle.acknowledged += 1
        if json.loads(self.ids.setdefault(schema_id, schema)) != json.loads(schema):
            self.world.violate(
                "an id means one schema",
                f"{where}: {schema_id} of {subject} is {schema}, and was {self.ids[schema_id]}",
            )

    def _start_clients(self) -> None:
        for instance in self.instances:
            instance.on_end = self._instance_ended
            instance.start()
        self.clients = [*self.registrants, Mallory(self, "mallory")]
        for client in self.clients:
            client.start()
        self._trouble()

    def _trouble(self) -> None:
        """Kill or pause an instance now and then."""
        if self._is_over:
            return
        instance = self.world.random.choice(self.instances)
        if instance.is_up and not instance.is_paused:
            if self.world.chance(0.6):
                instance.kill()
                self.world.after(self.world.between(0.1, 3.0), partial(self._restart, instance))
            else:
                instance.pause()
                self.world.after(self.world.between(0.5, 12.0), partial(self._resume, instance))
        self.world.after(self.world.between(1.0, 8.0), self._trouble)

    def _restart(self, instance: Instance) -> None:
        if not instance.is_up and not self._is_audited:
            instance.start()

    def _resume(self, instance: Instance) -> None:
        if instance.is_paused:
            instance.resume()

    def _instance_ended(self, process: Process, error: BaseException | None) -> None:
        """A supervisor starts an instance again that the cluster gave no answer."""
        if not _is_clients(error):
            self._ended(process, error)
        self.world.after(0.5, lambda: None if process.is_up else process.start())

    def calm(self) -> None:
        self._is_over = True
        for instance in self.instances:
            self._resume(instance)
            self._restart(instance)
        super().calm()

    def audit(self) -> None:
        super().audit()
        auditor, world = RegistryAuditor(self, "registry auditor"), self.world
        auditor.start()
        deadline_s = world.now_s + SETTLE_S
        while not auditor.is_done and world.now_s < deadline_s:
            world.run_until(world.now_s + 0.5)
        if not auditor.is_done:
            world.violate("a healthy cluster serves in time", "the registry does not answer")
        self._is_audited = True
        for instance in self.instances:
            instance.kill()


def _is_clients(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_clients(each) for each in error.exceptions)
    return isinstance(error, ClientError)
