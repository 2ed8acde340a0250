"""Connections above a rate: some wait, some are held and closed, and nothing remains of them."""

import asyncio

import pytest

from barnabas.base.metrics.registry import Registry
from barnabas.broker.security.connection_rates import UNLIMITED, ConnectionRates, RateLimits
from barnabas.broker.security.quotas import Quota
from barnabas.broker.server import quota_metrics
from barnabas.broker.server.addresses import address_of
from barnabas.broker.server.connection_quotas import ConnectionLimits
from barnabas.broker.server.listener import Endpoint
from barnabas.broker.server.quota_metrics import QuotaMetrics
from tests.support.waiting import eventually
from tests.unit.broker.server.harness import Harness

pytestmark = pytest.mark.uvloop


def rates(**limits: int) -> ConnectionRates:
    """Two windows of a tenth of a second: the connections of a tenth of a second may come at once."""
    made = ConnectionRates(windows=2, window_ms=100)
    made.limits = RateLimits(broker=limits.get("broker", UNLIMITED))
    if "address" in limits:
        made.address_changed("127.0.0.1", {"connection_creation_rate": str(limits["address"])})
    return made


def rejected(server: Harness) -> float:
    [family] = [each for each in server.registry.families() if each.name == "kafka_server_connections_rejected"]
    [counter] = family.series.values()
    return counter.value  # type: ignore[union-attr]


async def test_connections_over_the_brokers_rate_wait_and_are_served() -> None:
    loop = asyncio.get_running_loop()
    async with Harness(rates=rates(broker=20)) as server:
        began_s = loop.time()
        clients = [await server.client() for _ in range(6)]
        for number, client in enumerate(clients):
            await client.heartbeat(number)
        # Two at once, the others at twenty a second.
        assert loop.time() - began_s > 0.1
        assert len(server.server.connections) == 6
        clients.append(await server.client())
        await clients[-1].heartbeat(6)  # later clients are served, too
        assert rejected(server) == 0
        for client in clients:
            await client.close()


async def test_connection_over_its_addresss_rate_is_held_then_closed_and_counts_as_rejected() -> None:
    loop = asyncio.get_running_loop()
    async with Harness(rates=rates(address=10)) as server:
        first = await server.client()
        await first.heartbeat(1)
        second = await server.client()
        began_s = loop.time()
        assert await second.is_closed()
        assert loop.time() - began_s > 0.02
        await first.heartbeat(2)
        assert rejected(server) == 1
        await first.close()
        await second.close()


async def test_connection_that_waits_for_room_is_served_when_the_limit_rises() -> None:
    async with Harness(limits=ConnectionLimits(max_connections=1)) as server:
        first, second = await server.client(), await server.client()
        await first.heartbeat(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await second.heartbeat(1)
        server.server.set_limits(ConnectionLimits(max_connections=2))
        async with asyncio.timeout(5):
            await second.receive()
        await first.close()
        await second.close()


async def test_a_listeners_own_limit_holds_for_that_listener_alone() -> None:
    limits = ConnectionLimits(listeners={"PLAINTEXT": 1})
    async with Harness(limits=limits) as server:
        other = server.server.bind(Endpoint(name="OTHER", host="127.0.0.1", port=0))
        first, waiting = await server.client(), await server.client()
        await first.heartbeat(1)
        for number in range(3):
            client = await server.client(port=other)
            await client.heartbeat(number)
            await client.close()
        assert [each.listener_name for each in server.server.connections].count("PLAINTEXT") == 1
        await first.close()
        async with asyncio.timeout(5):
            await waiting.heartbeat(1)
        await waiting.close()


async def test_a_connection_of_a_broker_takes_the_place_of_the_longest_idle_client() -> None:
    limits = ConnectionLimits(max_connections=2, broker_listener="BROKERS")
    async with Harness(limits=limits) as server:
        brokers = server.server.bind(Endpoint(name="BROKERS", host="127.0.0.1", port=0))
        idle, busy = await server.client(), await server.client()
        for client in (busy, idle, busy):
            await client.heartbeat(1)
        broker = await server.client(port=brokers)
        await broker.heartbeat(1)
        assert await idle.is_closed()
        await busy.heartbeat(2)
        for client in (idle, busy, broker):
            await client.close()


async def test_a_lower_limit_closes_the_connections_that_were_idle_for_longest() -> None:
    async with Harness() as server:
        clients = [await server.client() for _ in range(3)]
        for client in clients:
            await client.heartbeat(1)
        server.server.set_limits(ConnectionLimits(max_connections=1))
        assert await clients[0].is_closed() and await clients[1].is_closed()
        await clients[2].heartbeat(2)
        for client in clients:
            await client.close()


async def test_server_that_stops_closes_held_connections() -> None:
    slow = ConnectionRates(windows=2, window_ms=60_000)
    slow.address_changed("127.0.0.1", {"connection_creation_rate": "1"})
    while not slow.came_from("127.0.0.1", "PLAINTEXT", int(asyncio.get_running_loop().time() * 1000)):
        continue  # the address has spent its windows: the next is held for a minute
    async with Harness(rates=slow) as server:
        client = await server.client()
        await eventually(lambda: rejected(server) == 1)
        server.server.stop_accepting()
        assert await client.is_closed()
        await client.close()


async def test_hosts_are_found_by_name_and_addresses_are_spelled_as_sockets_spell_them() -> None:
    assert await address_of("10.0.0.1") == "10.0.0.1"
    assert await address_of("0:0:0:0:0:0:0:1") == "::1"
    assert await address_of("localhost") == "127.0.0.1"
    assert await address_of("no such host.") is None


def test_series_of_users_and_clients_are_bounded_and_the_oldest_goes() -> None:
    registry = Registry()
    metrics = QuotaMetrics(registry)
    for number in range(quota_metrics.ENTITIES_MAX + 10):
        metrics.throttled(Quota.PRODUCE, (f"u{number}", ""), 5)
        metrics.throttled(Quota.PRODUCE, (f"u{number}", ""), 5)
    [family] = [each for each in registry.families() if each.name == "kafka_server_client_throttle_time_ms"]
    users = [dict(labels)["user"] for labels in family.series]
    assert (
        len(users) == quota_metrics.ENTITIES_MAX and "u0" not in users and f"u{quota_metrics.ENTITIES_MAX + 9}" in users
    )
    assert all(metric.value == 10 for metric in family.series.values())  # type: ignore[union-attr]


def test_one_address_gets_half_of_the_connections_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.base.host.descriptors.limit", lambda: 1024)
    assert ConnectionLimits().for_ip("10.0.0.1") == 192  # of 384, at two descriptors each; 256 are kept for files
    assert ConnectionLimits(max_connections=100).for_ip("10.0.0.1") >= 100
    assert ConnectionLimits(max_connections_per_ip=500).for_ip("10.0.0.1") == 500
    assert ConnectionLimits(per_ip_overrides={"10.0.0.1": 7}).for_ip("10.0.0.1") == 7
    limits = ConnectionLimits(broker_listener="BROKERS")
    assert (limits.descriptors_for("CLIENTS"), limits.descriptors_for("BROKERS")) == (768, 896)
