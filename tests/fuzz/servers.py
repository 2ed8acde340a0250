"""`python -m tests.fuzz.servers [--seconds 300] [--seed 7] [scram oauth]`: servers that misbehave, at clients of ours.

A SASL server over TCP asks for too much, breaks off, lies about sizes and drips; so does an OAuth provider over HTTP. Exits
with 1 and what was found: an error that is not one of a client's, an attempt that takes longer than its time, a turn of the
loop that is too long, or memory that grows.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import random
import resource
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import psutil

from barnabas.base.errors import ConfigError
from barnabas.client.connection import authenticate, open_connection
from barnabas.client.errors import ClientError
from barnabas.client.oauth_login import token_source
from barnabas.client.security import ClientSecurity
from barnabas.client.web import WebFailed, load
from barnabas.wire import codec, frame
from barnabas.wire.auth.exchange import SaslFailed
from barnabas.wire.auth.jaas import SCRAM_MODULE
from barnabas.wire.auth.jwt import KeySet
from barnabas.wire.auth.mechanisms.oauthbearer import OAUTH_MODULE
from barnabas.wire.auth.mechanisms.scram import ScramClient, ScramMechanism
from barnabas.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from barnabas.wire.versions import API

#: The longest turn of the client's loop. The proof of a password takes 0.2 s, on a thread.
TURN_S_MAX: Final = 0.25
#: An attempt takes its time-outs, the proof, and longer on a busy machine.
ATTEMPT_S_MAX: Final = 8.0
TIMEOUT_MS: Final = 300
GROWTH_BYTES_MAX: Final = 200_000_000


class Findings:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.sent: Counter[str] = Counter()
        self.found: list[str] = []
        self.longest_turn_s = self.longest_attempt_s = 0.0
        self._process = psutil.Process()
        self._before = self._process.memory_info().rss

    def add(self, what: str) -> None:
        if len(self.found) < 50:
            self.found.append(what)

    def judge(self) -> None:
        grown = self._process.memory_info().rss - self._before
        if grown > GROWTH_BYTES_MAX:
            self.add(f"the client grew by {grown:,} bytes")
        if self.longest_turn_s > TURN_S_MAX:
            self.add(f"a turn of the loop took {self.longest_turn_s:.2f} s")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(
            f"{dict(self.sent)}; longest turn {self.longest_turn_s * 1000:.0f} ms of CPU, longest attempt "
            f"{self.longest_attempt_s:.1f} s; grown by {grown / 1e6:.0f} MB, {peak / 1000:.0f} MB at most"
        )


# -- SCRAM ----------------------------------------------------------------------------------------------------------------


class ScramLies:
    """Messages of a SCRAM server: right ones with something wrong in them."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def first(self, client_first: bytes) -> bytes:
        chance = self._chance
        _, _, nonce = client_first.decode(errors="replace").partition("r=")
        nonce = nonce.split(",")[0]
        parts = {
            "r": chance.choice(
                (nonce + "s", nonce + "s", nonce + "s", nonce, "other", "", nonce + "\u2603", nonce + "s" * 20_000)
            ),
            "s": chance.choice(
                ("QUJD", "QUJD", base64.b64encode(bytes(chance.randrange(6_000))).decode(), "!", "", "QUJ")
            ),
            "i": chance.choice(
                (
                    "4096",
                    "4096",
                    "8192",
                    "16384",
                    "100000",
                    "100001",
                    "999999999",
                    "9" * 40,
                    "0",
                    "-1",
                    "1e9",
                    "\u0661\u0662",
                )
            ),
        }
        message = ",".join(f"{name}={value}" for name, value in parts.items())
        if chance.random() < 0.1:
            message = chance.choice(("m=x,", "e=other-error,", "", "v=AAAA")) + message
        if chance.random() < 0.1:
            message += ",x=" + "y" * chance.choice((1, 100, 100_000))
        return self.damaged(message.encode())

    def final(self) -> bytes:
        return self.damaged(
            self._chance.choice(
                (b"v=AAAA", b"v=", b"e=invalid-proof", b"e=" + b"x" * 100_000, b"", b"v=" + b"A" * 50_000)
            )
        )

    def damaged(self, data: bytes) -> bytes:
        chance = self._chance
        if chance.random() < 0.15 and data:
            at = chance.randrange(len(data))
            data = data[:at] + chance.randbytes(chance.randrange(8)) + data[at + chance.randrange(4) :]
        return data


def fuzz_scram_client(findings: Findings, count: int) -> None:
    """The client's exchange alone, without a network: a refusal is the only failure."""
    lies = ScramLies(findings.chance)
    for _ in range(count):
        mechanism = findings.chance.choice(tuple(ScramMechanism))
        client = ScramClient(mechanism, "alice", "secret", nonce="nonce", iterations_max=8192)
        findings.sent["scram exchange"] += 1
        try:
            with contextlib.suppress(SaslFailed):
                client.respond(lies.first(client.first()))
                client.respond(lies.final())
        except Exception as error:
            findings.add(f"the SCRAM client failed with {error!r}")
        if client.is_complete:
            findings.add("a server that does not know the password convinced the SCRAM client")


class SaslServer:
    """Speaks Kafka's protocol up to the login, mostly."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._lies = ScramLies(chance)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                await self._answer(await reader.readexactly(size), writer)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            writer.transport.abort()

    async def _answer(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        chance = self._chance
        header = frame.parse_request_header(data)
        request = codec.decode(API[header.api_key].request_class, data, header.api_version, header.body_offset)
        answer = frame.encode_response(self._response(request), header.api_version, header.correlation_id)
        kind = chance.random()
        if kind < 0.02:
            answer = struct.pack(">i", chance.choice((2**31 - 1, -1, 0, 3, 600_000_000))) + answer[4:]
        elif kind < 0.04:
            answer = answer[: chance.randrange(len(answer))]
        elif kind < 0.08:
            answer = self._lies.damaged(answer)
        elif kind < 0.09:
            writer.transport.abort()
            return
        elif kind < 0.10:
            for at in range(min(len(answer), 20)):
                if writer.transport.is_closing():
                    return
                writer.write(answer[at : at + 1])
                await asyncio.sleep(0.05)
            return
        writer.write(answer)
        await writer.drain()

    def _response(self, request: ApiMessage) -> ApiMessage:
        chance = self._chance
        if isinstance(request, SaslHandshakeRequest):
            return SaslHandshakeResponse(
                error_code=chance.choice((0, 0, 0, 0, 0, 0, 33, 58, -1, 32_000)),
                mechanisms=["SCRAM-SHA-256", "\u001b[2J"],
            )
        if isinstance(request, SaslAuthenticateRequest):
            token = bytes(request.auth_bytes)
            said = self._lies.first(token) if token.startswith(b"n,") else self._lies.final()
            return SaslAuthenticateResponse(
                error_code=chance.choice((0, 0, 0, 0, 0, 0, 58, 31_000)),
                error_message=chance.choice((None, "no", "x" * 30_000)),
                auth_bytes=said,
                session_lifetime_ms=chance.choice((0, 0, 1, -1, 2**63 - 1, -(2**63))),
            )
        versions = [
            ApiVersion(api_key=key, min_version=api.min_version, max_version=api.max_version)
            for key, api in API.items()
        ]
        if chance.random() < 0.05:
            versions = [
                ApiVersion(api_key=n, min_version=-5, max_version=32_767) for n in range(chance.choice((0, 3, 30_000)))
            ]
        return ApiVersionsResponse(error_code=chance.choice((0,) * 20 + (35, 58)), api_keys=versions)


async def log_in(findings: Findings, port: int) -> None:
    security = ClientSecurity.of(
        "SASL_PLAINTEXT",
        {
            "sasl.mechanism": findings.chance.choice(("SCRAM-SHA-256", "SCRAM-SHA-512")),
            "sasl.jaas.config": f'{SCRAM_MODULE} required username="alice" password="secret";',
        },
    )
    connection = await open_connection(
        "127.0.0.1",
        port,
        authenticate=lambda opened: authenticate(opened, security, timeout_ms=TIMEOUT_MS),
        request_timeout_ms=TIMEOUT_MS,
    )
    connection.close()
    findings.add("a server that does not know the password was taken for the right one")


async def attempt(findings: Findings, what: str, work: Callable[[], Awaitable[None]]) -> None:
    findings.sent[what] += 1
    began_s = time.monotonic()
    try:
        await work()
    except (ClientError, ConfigError):
        pass
    except Exception as error:
        findings.add(f"{what} failed with {error!r}")
    took_s = time.monotonic() - began_s
    findings.longest_attempt_s = max(findings.longest_attempt_s, took_s)
    if took_s > ATTEMPT_S_MAX:
        findings.add(f"{what} took {took_s:.1f} s")


def measure_turns(findings: Findings) -> None:
    """Each callback of the loop in this thread, in CPU time of the thread."""
    thread, run = threading.get_ident(), asyncio.events.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        if threading.get_ident() != thread:
            return run(handle)
        began_s = time.thread_time()
        try:
            return run(handle)
        finally:
            findings.longest_turn_s = max(findings.longest_turn_s, time.thread_time() - began_s)

    asyncio.events.Handle._run = measured  # type: ignore[method-assign,assignment]


async def scram(findings: Findings, seconds: float) -> None:
    server_loop = asyncio.new_event_loop()
    thread = threading.Thread(target=server_loop.run_forever, daemon=True)
    thread.start()
    hostile = SaslServer(random.Random(findings.chance.random()))
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(hostile.serve, "127.0.0.1", 0), server_loop).result()
    port = server.sockets[0].getsockname()[1]
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        await asyncio.to_thread(fuzz_scram_client, findings, 50)
        await asyncio.gather(*(attempt(findings, "scram login", lambda: log_in(findings, port)) for _ in range(8)))
    server_loop.call_soon_threadsafe(server.close)


# -- OAuth ----------------------------------------------------------------------------------------------------------------


class OAuthServer:
    """A provider of tokens and of key sets. Owner: its thread."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            peer, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            peer.settimeout(20)
            peer.recv(65_536)
            data = self._answer()
            if self._chance.random() < 0.1:
                for at in range(len(data)):
                    peer.sendall(data[at : at + 1])
                    time.sleep(0.05)
            else:
                peer.sendall(data)

    def _answer(self) -> bytes:
        chance = self._chance
        body = self._body()
        status = chance.choice((200, 200, 200, 200, 201, 204, 301, 302, 307, 400, 401, 429, 500, 503, 999))
        length: object = len(body)
        if chance.random() < 0.15:
            length = chance.choice((0, -1, 2**63, len(body) + 10, "many", len(body) // 2))
        headers = [f"HTTP/1.{chance.choice('0112')} {status} x", f"Content-Length: {length}"]
        if chance.random() < 0.2:
            headers.append(
                chance.choice(
                    (
                        f"Location: http://127.0.0.1:{self.port}/again",
                        "Location: file:///etc/hostname",
                        "Transfer-Encoding: chunked",
                        "Content-Encoding: gzip",
                        "Set-Cookie: " + "x" * 70_000,
                        "X: y\r\n" * 150,
                    )
                )
            )
        data = "\r\n".join(headers).encode() + b"\r\n\r\n" + body
        if chance.random() < 0.1:
            at = chance.randrange(len(data))
            data = data[:at] + chance.randbytes(chance.randrange(40)) + data[at + chance.randrange(40) :]
        return data[: chance.randrange(len(data))] if chance.random() < 0.1 else data

    def _body(self) -> bytes:
        chance = self._chance
        number = base64.urlsafe_b64encode(chance.randbytes(chance.choice((1, 32, 256, 4_096, 20_000)))).decode()
        key = {
            "kty": chance.choice(("RSA", "EC", "OKP", 7)),
            "crv": "P-256",
            "kid": "k",
            "n": number,
            "e": "AQAB",
            "x": number,
        }
        bodies: list[Callable[[], bytes]] = [
            lambda: json.dumps(
                {"access_token": chance.choice(("a.b.c", "", " ", 7, None, "x" * 500_000, "\r\nX: y"))}
            ).encode(),
            lambda: json.dumps({"keys": [key] * chance.choice((0, 1, 3, 60))}).encode(),
            lambda: chance.choice((b"[", b'{"a":', b'{"keys": [')) * 200_000,
            lambda: b"9" * chance.choice((10, 5_000, 500_000)),
            lambda: b"x" * chance.choice((0, 1, 2_000_000)),
            lambda: b'{"access_token": 1e999999999}',
            lambda: chance.randbytes(chance.randrange(500)),
        ]
        return chance.choice(bodies)()


def get_token(port: int) -> None:
    tokens = token_source(
        {
            "sasl.jaas.config": f'{OAUTH_MODULE} required clientId="client" clientSecret="secret";',
            "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{port}/token",
            "sasl.login.read.timeout.ms": str(TIMEOUT_MS),
            "sasl.login.retry.backoff.ms": "1",
            "sasl.login.retry.backoff.max.ms": "2",
        }
    )
    tokens.exchange().first()


def get_keys(port: int) -> None:
    with contextlib.suppress(WebFailed):
        KeySet(load(f"http://127.0.0.1:{port}/jwks", timeout_ms=TIMEOUT_MS))


async def oauth(findings: Findings, seconds: float) -> None:
    server = OAuthServer(random.Random(findings.chance.random()))
    ends_s = time.monotonic() + seconds
    kinds = {"token": get_token, "key set": get_keys}
    while time.monotonic() < ends_s:
        chosen = [findings.chance.choice(list(kinds)) for _ in range(6)]
        await asyncio.gather(
            *(attempt(findings, kind, lambda kind=kind: asyncio.to_thread(kinds[kind], server.port)) for kind in chosen)  # type: ignore[misc]
        )


KINDS: Final = {"scram": scram, "oauth": oauth}


def attack(kind: str, *, seconds: float, seed: int) -> Findings:
    findings = Findings(seed)

    async def main() -> None:
        measure_turns(findings)
        await KINDS[kind](findings, seconds)

    asyncio.run(main())
    findings.judge()
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    options = parser.parse_args()
    found = []
    for kind in options.kinds:
        print(f"{kind}, seed {options.seed}: ", end="", flush=True)
        found += attack(kind, seconds=options.seconds, seed=options.seed).found
    for each in found:
        print(f"FOUND: {each}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
