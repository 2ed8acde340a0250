"""Services beside the application: a small transactional database and HTTP servers, with latency, cuts and lost answers."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from barnabas.testing.simulation.guests import current

if TYPE_CHECKING:
    from barnabas.testing.simulation.app_world import World

#: A request that gets no answer is given up after so long.
TIMEOUT_S = 5.0
_BODY_MAX = 16 * 1024 * 1024


class AnswerLost(ConnectionError):
    """No answer has come: the database may have done it, or not."""


class Conflict(Exception):
    """Another transaction has changed what this one has read: try again."""


class Duplicate(Exception):
    """The key is there already."""


class Database:
    """Keys and values on a host of their own. Transactions are serializable, and last."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self._world = world
        self._network = world.network
        self._network.host(name)
        self._rows: dict[Hashable, Any] = {}
        self._versions: dict[Hashable, int] = {}

    def rows(self) -> dict[Hashable, Any]:
        """Return everything that is committed, for the test: at once, without the network."""
        return copy.deepcopy(self._rows)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Transaction"]:
        """Commit at the end of the block, unless it raises."""
        transaction = Transaction(self)
        yield transaction
        if transaction.written:
            await self._ask(transaction.apply)

    async def _ask(self, action: Callable[[], Any]) -> Any:
        """Do something in the database. The way there and the way back take time, and either may be cut."""
        guest = current()
        home = guest.name if guest is not None else "test"
        await self._way(home, self.name)
        result = action()
        if self._world.loses_answer():
            self._world.note(f"gets no answer of {self.name}, which has done it")
            await asyncio.sleep(TIMEOUT_S)
            raise AnswerLost(f"{self.name} has not answered within {TIMEOUT_S:g} s")
        await self._way(self.name, home)
        return result

    async def _way(self, source: str, target: str) -> None:
        await asyncio.sleep(self._network.delay())
        waited_s = 0.0
        while self._network.is_cut(source, target):
            if waited_s >= TIMEOUT_S:
                raise AnswerLost(f"{self.name} has not answered within {TIMEOUT_S:g} s")
            waited_s += 0.25
            await asyncio.sleep(0.25)


class Transaction:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._read: dict[Hashable, int] = {}
        self.written: dict[Hashable, Any] = {}

    async def get(self, key: Hashable, default: Any = None) -> Any:
        if key in self.written:
            return copy.deepcopy(self.written[key])

        def look() -> Any:
            self._read.setdefault(key, self._database._versions.get(key, 0))
            return copy.deepcopy(self._database._rows.get(key, default))

        return await self._database._ask(look)

    async def put(self, key: Hashable, value: Any) -> None:
        """Set the value; None removes the key. It is done with the commit."""
        self.written[key] = copy.deepcopy(value)

    async def insert(self, key: Hashable, value: Any) -> None:
        """Set the value of a key that must not be there: `Duplicate`."""
        if await self.get(key) is not None:
            raise Duplicate(f"{key!r} is there already")
        await self.put(key, value)

    def apply(self) -> None:
        """Commit, in the database."""
        database = self._database
        for key, version in self._read.items():
            if database._versions.get(key, 0) != version:
                raise Conflict(f"another transaction has changed {key!r}")
        for key, value in self.written.items():
            database._versions[key] = database._versions.get(key, 0) + 1
            if value is None:
                database._rows.pop(key, None)
            else:
                database._rows[key] = value


#: Gets the method, the path and the decoded body; returns the status and what to answer.
Handler = Callable[[str, str, Any], Awaitable[tuple[int, Any]]]


async def serve(world: "World", port: int, handler: Handler) -> None:
    """Answer HTTP/1.1 with JSON. An answer may get lost: then the connection ends without one."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await _request(reader)
                if request is None:
                    return
                status, body = await handler(*request)
                if world.loses_answer():
                    world.note("has done what it was asked, and its answer is lost")
                    return
                data = json.dumps(body).encode()
                head = f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
                writer.write(head.encode() + data)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "0.0.0.0", port) as server:
        await server.serve_forever()


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, Any] | None:
    """Read a request: method, path, body. None at the end of the connection."""
    line = (await reader.readline()).decode()
    if not line:
        return None
    method, path, _ = line.split(" ", 2)
    size = 0
    while header := (await reader.readline()).decode().strip():
        name, _, value = header.partition(":")
        if name.lower() == "content-length":
            size = int(value)
    if size > _BODY_MAX:
        raise ConnectionError(f"a body of {size} bytes")
    body = await reader.readexactly(size)
    return method, path, json.loads(body) if body else None
