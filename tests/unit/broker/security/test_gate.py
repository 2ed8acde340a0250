"""A listener with SASL, frame by frame: what passes before, during and after authentication, and what hostile peers get."""

import asyncio
import gc
import random
import struct
import weakref
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.broker.api.sasl import SaslApi, SaslGate
from barnabas.broker.server import listener
from barnabas.broker.server.connection import Connection
from barnabas.broker.server.handler import handlers_of
from barnabas.broker.server.listener import Endpoint
from barnabas.wire.auth.machine import Mechanism, NotAdmitted, RequestKind, SaslSession
from barnabas.wire.auth.mechanisms.plain import PlainServer
from barnabas.wire.codec import decode
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.heartbeat import HeartbeatResponse
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.manual_time import ManualClock
from tests.support.waiting import eventually
from tests.unit.broker.server.harness import Harness, RawClient, heartbeat

pytestmark = pytest.mark.uvloop


GOOD, BAD = b"\0alice\0secret", b"\0alice\0wrong"
TOKEN_BYTES_MAX = 1_000


class Listener:
    """A server whose only user is alice."""

    def __init__(self, *, reauth_ms: int = 0, failure_delay_ms: int = 0) -> None:
        self.clock = ManualClock()
        api = SaslApi(self.clock, failure_delay_ms=failure_delay_ms)
        mechanisms = {"PLAIN": Mechanism(lambda: PlainServer({"alice": "secret"}), reauth_ms)}
        self.principals: list[str] = []
        self.harness = Harness(
            {"Heartbeat": self._heartbeat},
            endpoint=Endpoint(
                name="SASL_PLAINTEXT",
                host="127.0.0.1",
                port=0,
                gate=lambda: SaslGate(SaslSession(mechanisms), api, frame_bytes_max=TOKEN_BYTES_MAX),
            ),
            more=handlers_of(api),
        )

    def _heartbeat(self, call: Any, request: Any) -> HeartbeatResponse:
        self.principals.append(str(call.channel.principal))
        return HeartbeatResponse()


async def handshake(client: RawClient, mechanism: str = "PLAIN", version: int = 1) -> SaslHandshakeResponse:
    client.send(SaslHandshakeRequest(mechanism=mechanism), version, 7)
    return decode(SaslHandshakeResponse, await client.receive(), version, 4)


async def authenticate(client: RawClient, token: bytes = GOOD, version: int = 1) -> SaslAuthenticateResponse:
    client.send(SaslAuthenticateRequest(auth_bytes=token), version, 8)
    return decode(SaslAuthenticateResponse, await client.receive(), version, 4)


async def is_hung_up_on(client: RawClient) -> bool:
    closed = await client.is_closed()
    await client.close()
    return closed


async def test_authenticated_client_is_served_under_its_own_name() -> None:
    made = Listener()
    async with made.harness as server:
        client = await server.client()
        assert (await handshake(client)).mechanisms == ["PLAIN"]
        assert (await authenticate(client)).error_code == ErrorCode.NONE
        await client.heartbeat()
        assert made.principals == ["User:alice"]
        await client.close()


async def test_request_before_authentication_closes_the_connection_unanswered() -> None:
    made = Listener()
    async with made.harness as server:
        for stage in range(2):
            client = await server.client()
            if stage:
                await handshake(client)
            client.send(heartbeat(), 3, 1)
            assert await is_hung_up_on(client)
        assert made.principals == []


async def test_wrong_password_is_answered_and_later_requests_do_not_run() -> None:
    made = Listener()
    async with made.harness as server:
        client = await server.client()
        await handshake(client)
        client.send(SaslAuthenticateRequest(auth_bytes=BAD), 1, 8)
        client.send(SaslAuthenticateRequest(auth_bytes=GOOD), 1, 9)
        client.send(heartbeat(), 3, 10)
        answer = decode(SaslAuthenticateResponse, await client.receive(), 1, 4)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == "Authentication failed: Invalid username or password"
        assert await is_hung_up_on(client)
        assert made.principals == []


async def test_refusal_waits_as_long_as_the_setting_says() -> None:
    made = Listener(failure_delay_ms=80)
    async with made.harness as server:
        client = await server.client()
        await handshake(client)
        began_s = asyncio.get_running_loop().time()
        await authenticate(client, BAD)
        assert await is_hung_up_on(client)
        assert asyncio.get_running_loop().time() - began_s >= 0.075
        hasty = await server.client()
        await handshake(hasty)
        hasty.send(SaslAuthenticateRequest(auth_bytes=BAD), 1, 8)
        await hasty.close()  # gone before the answer: nothing is sent, nothing breaks
        other = await server.client()
        await handshake(other)
        assert (await authenticate(other)).error_code == ErrorCode.NONE
        await other.close()
    assert not made.harness.bugs


async def test_mechanism_that_is_not_offered_is_refused_with_those_that_are() -> None:
    made = Listener()
    async with made.harness as server:
        client = await server.client()
        answer = await handshake(client, "GSSAPI")
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["PLAIN"])
        assert await is_hung_up_on(client)


async def test_tokens_without_headers_after_an_old_handshake() -> None:
    made = Listener()
    async with made.harness as server:
        client = await server.client()
        await handshake(client, version=0)
        client.writer.write(struct.pack(">i", len(GOOD)) + GOOD)
        assert await client.receive() == b""
        await client.heartbeat()
        assert made.principals == ["User:alice"]
        await client.close()
        stranger = await server.client()
        await handshake(stranger, version=0)
        stranger.writer.write(struct.pack(">i", len(BAD)) + BAD)
        assert await is_hung_up_on(stranger)


async def test_frames_are_small_before_authentication_and_large_after() -> None:
    made = Listener()
    async with made.harness as server:
        flooder = await server.client()
        flooder.writer.write(struct.pack(">i", TOKEN_BYTES_MAX + 1))
        assert await is_hung_up_on(flooder)
        client = await server.client()
        await handshake(client)
        await authenticate(client)
        client.send(heartbeat("g" * 20_000), 3, 1)
        await client.receive()
        await client.close()


async def test_peer_that_never_authenticates_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "AUTHENTICATION_TIMEOUT_S", 0.05)
    made = Listener()
    async with made.harness as server:
        good = await server.client()
        await handshake(good)
        await authenticate(good)
        silent = await server.client()
        slow = await server.client()
        slow.writer.write(b"\0\0")
        assert await is_hung_up_on(silent) and await is_hung_up_on(slow)
        await good.heartbeat()
        await good.close()


async def test_session_that_has_expired_is_closed_unless_authenticated_again() -> None:
    made = Listener(reauth_ms=60_000)
    async with made.harness as server:
        client = await server.client()
        await handshake(client)
        assert (await authenticate(client)).session_lifetime_ms == 60_000
        made.clock.advance_ms(59_000)
        await handshake(client)
        assert (await authenticate(client)).session_lifetime_ms == 60_000
        made.clock.advance_ms(59_000)
        await client.heartbeat()
        made.clock.advance_ms(1_000)
        client.send(heartbeat(), 3, 1)
        assert await is_hung_up_on(client)


async def test_second_authentication_without_need_is_answered_and_the_connection_stays() -> None:
    made = Listener()
    async with made.harness as server:
        client = await server.client()
        await handshake(client)
        await authenticate(client)
        assert (await handshake(client)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await authenticate(client)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        await client.heartbeat()
        await client.close()


async def test_listener_without_sasl_answers_an_illegal_state() -> None:
    api = SaslApi(ManualClock(), failure_delay_ms=0)
    async with Harness(more=handlers_of(api)) as server:
        client = await server.client()
        assert (await handshake(client)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await authenticate(client)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        await client.heartbeat()
        await client.close()


async def test_noise_on_one_connection_does_not_affect_others() -> None:
    chance = random.Random(11)
    made = Listener()
    async with made.harness as server:
        good = await server.client()
        await handshake(good)
        await authenticate(good)
        for number in range(150):
            noisy = await server.client()
            if number % 3 == 0:
                await handshake(noisy, version=number % 2)
            noise = chance.randbytes(chance.randrange(1, 200))
            noisy.writer.write(struct.pack(">i", len(noise)) + noise if number % 2 else noise)
            await good.heartbeat()
            await noisy.close()
        await good.close()
    assert not made.harness.bugs
    assert set(made.principals) == {"User:alice"}


async def test_stranger_asks_for_versions_a_few_times_and_no_more() -> None:
    async with Listener().harness as server:
        # The harness has no ApiVersions: the gate is asked first.
        client = await server.client()
        for number in range(5):
            client.send(ApiVersionsRequest(), 0, number)
        assert await client.is_closed()
        await client.close()


def test_versions_are_asked_for_three_times_at_most_before_the_handshake() -> None:
    session = SaslSession({})
    for _ in range(3):
        session.admit(RequestKind.VERSIONS, now_ms=0)
    with pytest.raises(NotAdmitted):
        session.admit(RequestKind.VERSIONS, now_ms=0)


async def test_one_address_tries_no_more_than_twenty_passwords_a_second() -> None:
    made = Listener()
    async with made.harness as server:
        attempts = [await server.client() for _ in range(45)]
        for client in attempts:
            client.send(SaslHandshakeRequest(mechanism="PLAIN"), 1, 1)
            await client.receive()
        began_s = asyncio.get_running_loop().time()
        for client in attempts:
            client.send(SaslAuthenticateRequest(auth_bytes=BAD), 1, 2)
        for client in attempts:
            await client.receive()
        took_s = asyncio.get_running_loop().time() - began_s
        assert took_s > 1.0, "twenty are forgiven, each of the others waits 50 ms for the one before"
        for client in attempts:
            await client.close()
    assert not made.harness.bugs


async def test_connections_that_come_and_go_leave_nothing_behind() -> None:
    """Without a search of the heap for garbage: a broker makes few of those."""
    made = Listener()
    async with made.harness as server:
        gc.disable()
        seen: list[weakref.ref[Connection]] = []
        try:
            for _ in range(20):
                client = await server.client()
                client.send(SaslHandshakeRequest(mechanism="PLAIN"), 1, 1)
                await client.receive()
                client.send(SaslAuthenticateRequest(auth_bytes=GOOD), 1, 2)
                await client.receive()
                seen += [weakref.ref(each) for each in server.server.connections]
                await client.close()
            await eventually(lambda: not server.server.connections)
            await eventually(lambda: sum(each() is not None for each in seen) <= 1)
        finally:
            gc.enable()


async def test_strangers_together_have_a_bounded_number_of_bytes_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.broker.server.connection.STRANGERS_BYTES_MAX", 2_500)
    async with Listener().harness as server:
        first, second, third = [await server.client() for _ in range(3)]
        for client in (first, second):
            client.writer.write(struct.pack(">i", TOKEN_BYTES_MAX) + b"x" * 10)
        await eventually(lambda: server.server._shared.strangers_bytes == 2 * TOKEN_BYTES_MAX)
        third.writer.write(struct.pack(">i", TOKEN_BYTES_MAX) + b"x" * 10)
        assert await third.is_closed()
        await first.close()
        await eventually(lambda: server.server._shared.strangers_bytes == TOKEN_BYTES_MAX)
        await second.close()
        await eventually(lambda: server.server._shared.strangers_bytes == 0)
        await third.close()
