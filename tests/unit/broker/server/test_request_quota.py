"""The loop's time is charged to its user: the work of a request counts, its waiting does not."""

import asyncio

import pytest

from barnabas.broker.security.quotas import ABSENT, ClientQuotas, Quota
from barnabas.broker.server.request_quota import RequestQuota
from barnabas.wire.codec import decode
from barnabas.wire.messages.heartbeat import HeartbeatResponse
from tests.support.waiting import eventually
from tests.unit.broker.server.harness import Harness, heartbeat

pytestmark = pytest.mark.uvloop


class Clock:
    """Time that only a handler moves."""

    def __init__(self) -> None:
        self.s = 100.0

    def now(self) -> float:
        return self.s


class Recorded(ClientQuotas):
    """Records the charges, in percent-seconds."""

    def __init__(self) -> None:
        super().__init__(windows=11, window_ms=1_000)
        self.charged: list[float] = []
        self.entity_changed((ABSENT, "test"), {Quota.REQUEST.value: "1000"})

    def record(self, quota: Quota, user: str, client_id: str, amount: float, *, now_ms: int) -> int:
        self.charged.append(round(amount, 3))
        return super().record(quota, user, client_id, amount, now_ms=now_ms)

    def add(self, quota: Quota, user: str, client_id: str, amount: float, *, now_ms: int) -> None:
        if amount > 1.0:  # sending takes its own, real time
            self.charged.append(round(amount, 3))


async def test_handler_that_answers_at_once_pays_for_its_time() -> None:
    clock, quotas = Clock(), Recorded()

    def handle(call: object, request: object) -> HeartbeatResponse:
        clock.s += 0.25
        return HeartbeatResponse()

    async with Harness({"Heartbeat": handle}) as server:
        server.pipeline._request_quota, server.pipeline.now_s = RequestQuota(quotas, clock.now), clock.now
        client = await server.client()
        client.send(heartbeat(), 4, 1)
        await client.receive()
        await client.close()
    assert quotas.charged == [25.0]


async def test_time_that_is_waited_for_others_costs_nothing() -> None:
    clock, quotas, gate = Clock(), Recorded(), asyncio.Event()

    async def handle(call: object, request: object) -> HeartbeatResponse:
        clock.s += 0.1
        await gate.wait()
        clock.s += 0.2
        return HeartbeatResponse()

    async with Harness({"Heartbeat": handle}) as server:
        server.pipeline._request_quota, server.pipeline.now_s = RequestQuota(quotas, clock.now), clock.now
        client = await server.client()
        client.send(heartbeat(), 4, 1)
        await asyncio.sleep(0)
        await eventually(lambda: clock.s >= 100.1)
        clock.s += 50.0
        gate.set()
        await client.receive()
        await client.close()
    assert quotas.charged == [pytest.approx(30.0)]


async def test_work_that_fails_after_a_wait_is_paid_for_and_refused() -> None:
    clock, quotas = Clock(), Recorded()

    async def handle(call: object, request: object) -> HeartbeatResponse:
        await asyncio.sleep(0)
        clock.s += 0.5
        raise RuntimeError("no")

    async with Harness({"Heartbeat": handle}) as server:
        server.pipeline._request_quota, server.pipeline.now_s = RequestQuota(quotas, clock.now), clock.now
        client = await server.client()
        client.send(heartbeat(), 4, 1)
        await client.receive()
        await client.close()
    assert quotas.charged == [pytest.approx(50.0)]


async def test_client_over_its_share_is_throttled_and_another_is_not() -> None:
    clock = Clock()
    quotas = ClientQuotas(windows=2, window_ms=1_000)
    quotas.entity_changed(("ANONYMOUS", "test"), {Quota.REQUEST.value: "10"})

    def handle(call: object, request: object) -> HeartbeatResponse:
        clock.s += 0.2
        return HeartbeatResponse()

    async with Harness({"Heartbeat": handle}) as server:
        server.pipeline._request_quota, server.pipeline.now_s = RequestQuota(quotas, clock.now), clock.now
        client = await server.client()
        client.send(heartbeat(), 4, 1)
        response = decode(HeartbeatResponse, memoryview(await client.receive())[5:], 4)
        assert response.throttle_time_ms == 1_000
        [connection] = server.server.connections
        assert connection.is_muted
        quotas.entity_changed(("ANONYMOUS", "test"), {})
        other = await server.client()
        other.send(heartbeat(), 4, 2)
        assert decode(HeartbeatResponse, memoryview(await other.receive())[5:], 4).throttle_time_ms == 0
        assert connection.is_muted
        await client.close()
        await other.close()
