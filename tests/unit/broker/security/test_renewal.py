"""KIP-368 from the client's side: a session is renewed in time, between requests, without any effect on them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping

import pytest

from barnabas.broker.api.sasl import SaslApi, SaslGate
from barnabas.broker.server.handler import handlers_of
from barnabas.broker.server.listener import Endpoint
from barnabas.client import security
from barnabas.client.connection import Connection, authenticate, open_connection
from barnabas.client.errors import AuthenticationFailed, ConnectionLost
from barnabas.wire.auth.machine import Mechanism, SaslSession
from barnabas.wire.auth.mechanisms.plain import PlainServer
from barnabas.wire.auth.mechanisms.scram import ScramCredential, ScramMechanism, ScramServer
from barnabas.wire.messages.heartbeat import HeartbeatResponse
from barnabas.wire.versions import VersionRange
from tests.manual_time import ManualClock
from tests.support.async_fixture import async_fixture
from tests.unit.broker.server.harness import Harness, heartbeat

SESSION_MS = 10_000
SETTINGS = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": 'x required username="alice" password="secret";'}


class Broker:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.passwords = {"alice": "secret"}
        self.sessions: list[SaslSession] = []
        self.handshakes = 0
        api = SaslApi(self.clock, failure_delay_ms=0)
        self.mechanisms = {"PLAIN": Mechanism(self._begin, SESSION_MS)}
        self.harness = Harness(
            endpoint=Endpoint(
                name="SASL",
                host="127.0.0.1",
                port=0,
                gate=lambda: SaslGate(SaslSession(self.mechanisms), api, frame_bytes_max=1_000),
            ),
            more=handlers_of(api),
        )

    def _begin(self) -> PlainServer:
        self.handshakes += 1
        return PlainServer(self.passwords)

    async def connect(self, settings: Mapping[str, str] = SETTINGS) -> Connection:
        secured = security.ClientSecurity.of("SASL_PLAINTEXT", settings)

        async def prove(connection: Connection) -> None:
            connection.versions.apis = {12: VersionRange(0, 4), 17: VersionRange(0, 1), 36: VersionRange(0, 2)}
            await authenticate(connection, secured, timeout_ms=5_000)

        return await open_connection(
            "127.0.0.1", self.harness.port, authenticate=prove, negotiate=False, max_in_flight=5
        )


@async_fixture
async def broker() -> AsyncIterator[Broker]:
    started = Broker()
    async with started.harness:
        yield started


async def test_session_is_renewed_between_requests_of_many_tasks(broker: Broker) -> None:
    connection = await broker.connect()
    assert connection._renew is not None
    for renewals in range(1, 6):
        broker.clock.advance_ms(SESSION_MS)  # over: only a renewal helps
        waiting = [asyncio.ensure_future(connection.request(heartbeat(), HeartbeatResponse)) for _ in range(20)]
        connection.renew_after(0, connection._renew)
        await asyncio.gather(*waiting)
        assert broker.handshakes == 1 + renewals
    connection.close()


async def test_session_that_is_not_renewed_in_time_ends(broker: Broker) -> None:
    connection = await broker.connect()
    await connection.request(heartbeat(), HeartbeatResponse)
    broker.clock.advance_ms(SESSION_MS)
    with pytest.raises(ConnectionLost):
        await connection.request(heartbeat(), HeartbeatResponse)


async def test_password_that_was_changed_meanwhile_ends_the_connection_with_words(broker: Broker) -> None:
    connection = await broker.connect()
    broker.clock.advance_ms(5_000)
    broker.passwords["alice"] = "another"
    connection.renew_after(0, connection._renew)  # type: ignore[arg-type]
    with pytest.raises(AuthenticationFailed, match="Invalid username or password"):
        await connection.request(heartbeat(), HeartbeatResponse)
    assert connection.closed


async def test_scram_proof_is_computed_on_a_thread(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server chooses the number of iterations: the loop of a broker that follows it must keep turning."""
    threads: list[threading.Thread] = []
    compute = ScramMechanism.salted_password

    def recorded(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
        threads.append(threading.current_thread())
        return compute(mechanism, password, salt, iterations)

    credential = ScramCredential.of_password(ScramMechanism.SHA_256, "secret", salt=b"salt", iterations=4096)
    server = ScramServer(ScramMechanism.SHA_256, {"alice": credential}.get, nonce="server")
    broker.mechanisms["SCRAM-SHA-256"] = Mechanism(lambda: server, SESSION_MS)
    monkeypatch.setattr(ScramMechanism, "salted_password", recorded)
    connection = await broker.connect({**SETTINGS, "sasl.mechanism": "SCRAM-SHA-256"})
    assert len(threads) == 1 and threads[0] is not threading.current_thread()
    connection.close()
