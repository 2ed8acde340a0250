"""`python -m tests.fuzz.turns [ELEMENTS] [API…]`: how long one large request occupies the loop of a broker.

For each array of each API that a client may use, it sends one request in which this array is full. The broker runs in this
process; the client is a thread with a socket. A turn is one callback of the loop, measured in CPU time of its thread, so that
other programs on the machine do not count.
"""

import asyncio
import gc
import itertools
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from barnabas.broker.compose import Broker
from barnabas.wire.frame import encode_request
from barnabas.wire.messages.base import Message, Wire
from barnabas.wire.versions import API_VERSIONS, INTER_BROKER, Api, api_named
from tests.unit.broker.compose.live_broker import LISTENER, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import zookeeper

ELEMENTS = 9_900
HEADING = "longest turn   all turns   sent      answered"
SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "auto.create.topics.enable": "false",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
}
_SASL = frozenset(api_named(name).key for name in ("SaslHandshake", "SaslAuthenticate"))


class Turns:
    """The longest callback of the loop that runs in this thread, and the sum of all."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.longest_s = self.all_s = 0.0
        run = asyncio.events.Handle._run

        def measured(handle: Any) -> None:
            if threading.get_ident() != self._thread:
                return run(handle)
            start_s = time.thread_time()
            try:
                return run(handle)
            finally:
                took_s = time.thread_time() - start_s
                self.all_s += took_s
                self.longest_s = max(self.longest_s, took_s)

        asyncio.events.Handle._run = measured  # type: ignore[method-assign]

    def forget(self) -> None:
        self.longest_s = self.all_s = 0.0

    def of(self, loop: asyncio.AbstractEventLoop, port: int, frame: bytes) -> str:
        """Send a request; return one line with its times."""
        self.forget()
        answered = answer_bytes(port, frame)
        # The answer is sent before the turn that made it is over.
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
        took = f"{self.longest_s * 1000:9.1f} ms {self.all_s * 1000:8.1f} ms"
        return f"{took} {len(frame):9} {'closed' if answered is None else answered:>9}"


class Filling:
    """Requests with as many elements as wanted, all of them different."""

    def __init__(self, elements: int) -> None:
        self._elements = elements
        self._number = itertools.count()

    def requests(self, api: Api) -> Iterator[tuple[str, Message]]:
        """Yield a request for each array of the API, and for each array in the first element of another array."""
        request_class = api.request_class
        for name, spec in _arrays(request_class):
            yield name, request_class(**{name: self._many(spec)}, **self._names(request_class))
            if isinstance(spec.type, str):
                continue
            for inner, inner_spec in _arrays(spec.type):
                element = spec.type(**{inner: self._many(inner_spec)}, **self._names(spec.type))
                yield f"{name}.{inner}", request_class(**{name: [element]}, **self._names(request_class))

    def _many(self, spec: Wire) -> list[Any]:
        return [self._element(spec.type) for _ in range(self._elements // _weight(spec.type))]

    def _element(self, kind: "str | type[Message]") -> Any:
        if isinstance(kind, str):
            number = next(self._number)
            return {"string": f"n{number}", "uuid": number.to_bytes(16), "bytes": b"x"}.get(kind, number % 100)
        lists = {name: [self._element(spec.type)] for name, spec in _arrays(kind)}
        return kind(**lists, **self._names(kind))

    def _names(self, kind: type[Message]) -> dict[str, Any]:
        """Return the fields by which elements differ: names and numbers."""
        plain = {name: spec.type for name, spec in kind.__wire__.items() if not spec.is_array and spec.tag is None}
        names = {name: self._element(type_) for name, type_ in plain.items() if type_ in ("string", "uuid")}
        return names | {name: next(self._number) for name in plain if name.startswith("partition")}


def _arrays(kind: type[Message]) -> list[tuple[str, Wire]]:
    return [(name, spec) for name, spec in kind.__wire__.items() if spec.is_array and spec.tag is None]


def _weight(kind: "str | type[Message]") -> int:
    """Return how many elements one of this kind counts for."""
    return 1 if isinstance(kind, str) else 1 + sum(_weight(spec.type) for _, spec in _arrays(kind))


def answer_bytes(port: int, frame: bytes) -> int | None:
    """Return the size of the answer; None if the broker closed the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=600) as peer:
        peer.sendall(frame)
        with peer.makefile("rb") as answer:
            head = answer.read(4)
            return len(answer.read(struct.unpack(">i", head)[0])) if head else None


def attack(loop: asyncio.AbstractEventLoop, broker: Broker, turns: Turns, elements: int, names: set[str]) -> None:
    filling = Filling(elements)
    print(HEADING)
    for key, handler in sorted(broker.pipeline.handlers.items()):
        api = handler.api
        if key in INTER_BROKER or key in _SASL or key == API_VERSIONS or (names and api.name not in names):
            continue
        for what, request in filling.requests(api):
            frame = encode_request(request, api.max_version, 1, "turns")  # type: ignore[arg-type]
            print(f"{turns.of(loop, broker.ports[LISTENER], frame)}   {api.name} {what}", flush=True)


async def main(elements: int, names: set[str]) -> None:
    gc.disable()  # A broker's process freezes its loaded objects; this process also has the modules of a test.
    turns = Turns()
    with tempfile.TemporaryDirectory() as folder:
        async with zookeeper() as ensemble, live_broker(ensemble, Path(folder), SETTINGS) as broker:
            await asyncio.to_thread(attack, asyncio.get_running_loop(), broker, turns, elements, names)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    count = int(arguments.pop(0)) if arguments and arguments[0].isdigit() else ELEMENTS
    asyncio.run(main(count, set(arguments)))
