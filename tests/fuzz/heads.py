"""`python -m tests.fuzz.heads [--seconds 300] [--seed 7]`: hostile heads and bodies at the HTTP layer of registry and console.

The shipped protocol and applications, with a transport in memory. After each connection: nothing was raised or logged as an
error, a request that a page of another site could send reached no handler, a well-formed one got its answer, and a
connection that waits for its client has a time limit. Exits with 1 and what was found.
"""

import argparse
import asyncio
import json
import logging
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import uvicorn
from uvicorn.server import ServerState

from barnabas.client.config import client_config
from barnabas.services.console.app import create_app
from barnabas.services.console.settings import Settings
from barnabas.services.http.connections import Connections, State
from barnabas.services.http.protocol import BoundedProtocol
from barnabas.services.registry.web import Application, Request, Response, Route, json_response

BODY_BYTES_MAX: Final = 4096
HOSTS: Final = ("localhost:8081", "127.0.0.1", "[::1]:8081", "localhost")
ODD_HOSTS: Final = (
    "evil.example",
    "localhost.evil.example",
    "",
    "127.0.0.1@evil.example",
    "[",
    "a:b:c",
    "%6cocalhost",
    "0",
)
ODD_ORIGINS: Final = (
    "http://evil.example",
    "null",
    "http://localhost.evil.example",
    "",
    "file://",
    "http://[",
    "localhost:8081",
)
ODD_TYPES: Final = (
    "text/plain",
    "application/x-www-form-urlencoded",
    "",
    "text/plain; application/json",
    "multipart/form-data",
)
PIECES: Final = (
    *(bytes([each]) for each in b"\r\n\0 :,;%?#\xff"),
    b"\r\n",
    b"%00",
    b"%2f",
    b"..",
    b"//",
    b"HTTP/1.1",
    b"HTTP/9.9",
    b"\x16\x03\x01",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: " + b"9" * 20 + b"\r\n",
    b"Expect: 100-continue\r\n",
    b"Upgrade: websocket\r\nConnection: Upgrade\r\n",
    b"Connection: close\r\n",
    b"a" * 5_000,
    b"X-Forwarded-For: 1.2.3.4\r\n",
    b"Host: evil.example\r\n",
    b"Origin: http://evil.example\r\n",
    b"0\r\n\r\n",
    b"Content-Type: application/json\r\n",
    b"Authorization: Basic !!!\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
_RESPONSE: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")


class Transport(asyncio.Transport):
    """Stands for a socket. It takes everything."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 4711), "sockname": ("127.0.0.1", 8081)})
        self.written = bytearray()
        self.is_over = False
        self.protocol: asyncio.Protocol | None = None

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        if not self.is_over and self.protocol is not None:
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)
        self.is_over = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_over

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


@dataclass
class Sent:
    data: bytes
    #: Nothing in it is malformed, and no page of another site can send it.
    is_good: bool
    #: As well-formed, but a page of another site can send it, or it names another host.
    is_foreign: bool = False
    closes: bool = False


@dataclass
class Harness:
    chance: random.Random
    #: Requests that reached a handler, by the mark in their query.
    reached: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    inputs: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        routes = [Route("POST", "subjects/{subject}/versions", self._handle), Route("GET", "subjects", self._handle)]
        self.registry = Application(routes, prepare=self._prepare, body_bytes_max=BODY_BYTES_MAX, only_names=set())
        self.console = create_app(Settings(client=client_config("localhost:9092")))

    async def _prepare(self, request: Request) -> Request:
        return request

    async def _handle(self, request: Request) -> Response:
        if request.method == "POST":
            request.json()
        self.reached.add(request.text("mark"))
        return json_response({})

    # -- requests -------------------------------------------------------------------------------------------------------

    def request(self, mark: str, kind: str) -> Sent:
        chance = self.chance
        is_post = chance.random() < 0.5
        headers = {"Host": chance.choice(HOSTS)}
        body = b""
        path = (
            "/subjects"
            if kind == "registry"
            else chance.choice(("/api/session", "/api/openapi.json", "/", "/static/app.js", "/api/x"))
        )
        if is_post and kind == "registry":
            path, body = (
                "/subjects/a%2Fb/versions",
                json.dumps({"schema": '"int"', "pad": "x" * chance.randrange(2_000)}).encode(),
            )
            headers["Content-Type"] = chance.choice(
                ("application/json", "application/vnd.schemaregistry.v1+json; charset=utf-8")
            )
        is_post = bool(body)
        is_foreign = chance.random() < 0.3
        if is_foreign:
            match chance.randrange(4 if is_post else 3):
                case 0:
                    headers["Host"] = chance.choice(ODD_HOSTS)
                case 1:
                    headers["Origin"] = chance.choice(ODD_ORIGINS)
                case 2:
                    headers["Sec-Fetch-Site"] = chance.choice(("cross-site", "same-site", "Cross-Site", "x"))
                case _:
                    headers["Content-Type"] = chance.choice(ODD_TYPES)
        closes = chance.random() < 0.1
        if closes:
            headers["Connection"] = "close"
        if chance.random() < 0.3:
            headers["X-Forwarded-For"] = chance.choice(("1.2.3.4", "a b", "," * 50))
        is_chunked = is_post and chance.random() < 0.3
        if is_chunked:
            headers["Transfer-Encoding"] = "chunked"
            body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in self.parts(body)) + b"0\r\n\r\n"
        elif is_post:
            headers["Content-Length"] = str(len(body))
        lines = [
            f"{'POST' if is_post else 'GET'} {path}?mark={mark} HTTP/1.1",
            *(f"{name}: {each}" for name, each in headers.items()),
        ]
        return Sent("\r\n".join(lines).encode() + b"\r\n\r\n" + body, not is_foreign, is_foreign, closes)

    def parts(self, data: bytes) -> list[bytes]:
        """The data in pieces of random sizes."""
        found, at = [], 0
        while at < len(data):
            size = self.chance.choice((1, 7, 100, 5_000))
            found.append(data[at : at + size])
            at += size
        return found

    def mutated(self, data: bytes) -> bytes:
        for _ in range(self.chance.choice((1, 1, 2, 5))):
            head = data.find(b"\r\n\r\n") + 4 or len(data)
            at = self.chance.randrange((head if self.chance.random() < 0.8 else len(data)) + 1)
            match self.chance.randrange(4):
                case 0:
                    data = data[:at]
                case 1:
                    data = data[:at] + self.chance.choice(PIECES) + data[at:]
                case 2:
                    data = (
                        data[:at]
                        + self.chance.randbytes(self.chance.randrange(1, 9))
                        + data[at + self.chance.randrange(9) :]
                    )
                case _:
                    data = data[:at] + data[at // 2 :]
        return data

    # -- connections ----------------------------------------------------------------------------------------------------

    async def connection(self, number: int) -> None:
        chance = self.chance
        kind = chance.choice(("registry", "registry", "console"))
        config = uvicorn.Config(
            self.registry if kind == "registry" else self.console,
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            ws="none",
        )
        config.load()
        connections = Connections(10)
        place = connections.open("127.0.0.1")
        assert place is not None
        transport, state = Transport(), ServerState()
        protocol = BoundedProtocol(config, state, {}, connections, place)
        transport.protocol = protocol
        protocol.connection_made(transport)
        self.check(protocol, transport)
        sent = [self.request(f"{number}-{each}", kind) for each in range(chance.choice((1, 1, 2, 4)))]
        is_clean = chance.random() < 0.3
        data = b"".join(each.data for each in sent)
        if not is_clean:
            data = self.mutated(data)
        self.inputs[f"{kind} {'clean' if is_clean else 'mutated'}"] += 1
        for part in self.parts(data):
            if transport.is_over:
                break
            protocol.data_received(part)
            if chance.random() < 0.2:
                await asyncio.sleep(0)
            self.check(protocol, transport)
        await self.settle(state)
        self.check(protocol, transport)
        if is_clean:
            self.check_answers(sent, bytes(transport.written), kind, number)
        transport.close()
        await asyncio.sleep(0)
        await self.settle(state)
        is_timed = protocol._waiting is not None and not protocol._waiting.cancelled()
        if len(connections) or is_timed:
            self.problems.append(f"{number}: the connection is over, and its place or its timer is still there")

    async def settle(self, state: ServerState) -> None:
        """Until every request is answered, or waits for more of its body."""
        while state.tasks:
            done, _ = await asyncio.wait(list(state.tasks), timeout=0.05)
            if not done:
                return

    def check(self, protocol: BoundedProtocol, transport: Transport) -> None:
        waits = protocol._place.state in (State.NEW, State.RESTING)
        if waits and not transport.is_over and (protocol._waiting is None or protocol._waiting.cancelled()):
            self.problems.append(f"a connection waits without a time limit: {protocol._place}")

    def check_answers(self, sent: list[Sent], written: bytes, kind: str, number: int) -> None:
        statuses = [int(each) for each in _RESPONSE.findall(written)]
        asked = [*sent[: next((at + 1 for at, each in enumerate(sent) if each.closes), len(sent))]]
        if kind == "console":
            if any(status >= 500 for status in statuses):
                self.problems.append(f"{number}: {statuses} for {[each.data[:300] for each in sent]}")
            return
        for at, (each, status) in enumerate(zip(asked, statuses, strict=False)):
            was_reached = f"{number}-{at}" in self.reached
            if each.is_good != (status == 200) or each.is_good != was_reached:
                self.problems.append(f"{number}: {status}, reached: {was_reached}, for {each.data[:400]!r}")
        if len(statuses) != len(asked) and not any(each.is_foreign for each in asked):
            self.problems.append(
                f"{number}: {len(statuses)} answers to {len(asked)} requests: {[each.data[:300] for each in asked]}"
            )


class _Errors(logging.Handler):
    def __init__(self, problems: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._problems = problems

    def emit(self, record: logging.LogRecord) -> None:
        trouble = record.exc_info[1] if record.exc_info else ""
        self._problems.append(f"log: {record.getMessage()} {trouble!r}")


async def fuzz(*, seconds: float, seed: int, most: int | None = None) -> tuple[Counter[str], list[str]]:
    harness = Harness(random.Random(seed))
    handler = _Errors(harness.problems)
    logging.getLogger().addHandler(handler)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: harness.problems.append(f"loop: {context['message']} {context.get('exception')!r}")
    )
    ends_s, number = time.monotonic() + seconds, 0
    try:
        while time.monotonic() < ends_s and len(harness.problems) < 20 and (most is None or number < most):
            number += 1
            try:
                await harness.connection(number)
            except Exception as error:
                harness.problems.append(f"{number}: {error!r}")
    finally:
        logging.getLogger().removeHandler(handler)
    return harness.inputs, harness.problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    inputs, problems = asyncio.run(fuzz(seconds=options.seconds, seed=options.seed))
    print(f"seed {options.seed}: {dict(inputs)}")
    for each in problems:
        print(f"FOUND: {each}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
