"""Kafka's rules for the requests of client instances."""

import pytest
from crc32c import crc32c

from barnabas.base.config.client_metrics_config import ClientMetricsConfig, client_metrics_config
from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.features.client_metrics.instances import (
    NAME_CHARS_MAX,
    SILENCE_MS_LEAST,
    Client,
    Instances,
    subscription_of,
)

INTERVAL_MS = 1_000


def client(number: int = 7, client_id: str | None = "orders", version: str = "2.16.0") -> Client:
    return Client(
        instance_id=number.to_bytes(16),
        client_id=client_id,
        software_name="librdkafka",
        software_version=version,
        principal="User:ANONYMOUS",
        address="10.0.0.1",
        port=5000,
    )


def subscription(metrics: str = "*", interval_ms: int = INTERVAL_MS, match: str = "") -> ClientMetricsConfig:
    return client_metrics_config({"metrics": metrics, "interval.ms": str(interval_ms), "match": match})


class World:
    def __init__(self, *, instances_max: int = 100) -> None:
        self.subscriptions = {"all": subscription()}
        self.now_ms = 0
        self.instances = Instances(lambda: self.subscriptions, bytes_max=100, instances_max=instances_max)

    def get(self, caller: Client | None = None) -> ErrorCode:
        try:
            self.instances.get(caller or client(), self.now_ms)
        except Refused as refusal:
            return refusal.code
        return ErrorCode.NONE

    def push(self, *, id: int | None = None, last: bool = False, codec: int = 0, size: int = 1) -> ErrorCode:
        known = self.instances.known.get(client().instance_id)
        if id is None:
            id = known.subscription.id if known is not None else subscription_of(client(), self.subscriptions).id
        try:
            self.instances.push(
                client(), self.now_ms, subscription_id=id, is_terminating=last, codec=codec, size_bytes=size
            )
        except Refused as refusal:
            return refusal.code
        return ErrorCode.NONE


def test_first_push_may_follow_its_subscription_at_once_and_the_next_one_an_interval_later() -> None:
    world = World()
    assert world.get() is ErrorCode.NONE
    assert world.push() is ErrorCode.NONE
    world.now_ms = INTERVAL_MS - 1
    assert world.push() is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert world.get() is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    world.now_ms = INTERVAL_MS
    assert world.push() is ErrorCode.NONE
    assert world.instances.throttled == 2


def test_last_push_may_come_early_and_nothing_may_come_after_it() -> None:
    world = World()
    assert (world.get(), world.push()) == (ErrorCode.NONE, ErrorCode.NONE)
    assert world.push(last=True) is ErrorCode.NONE
    world.now_ms = 10 * INTERVAL_MS
    assert world.push() is ErrorCode.INVALID_REQUEST


def test_changed_subscription_is_unknown_in_a_push_and_can_be_asked_for_at_once() -> None:
    world = World()
    world.get()
    former = world.instances.known.get(client().instance_id)
    assert former is not None
    world.subscriptions = {"all": subscription("org.apache.kafka.producer.")}
    assert world.push(id=former.subscription.id) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert world.get() is ErrorCode.NONE
    assert world.push() is ErrorCode.NONE
    assert world.instances.unknown_subscriptions == 1


def test_pushes_are_refused_with_kafkas_errors() -> None:
    for why, code in (
        ({"codec": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"size": 101}, ErrorCode.TELEMETRY_TOO_LARGE),
        ({"id": 1}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
    ):
        assert World().push(**why) is code
    assert World().push(codec=4, size=100) is ErrorCode.NONE


@pytest.mark.parametrize("instance_id", [bytes(16), bytes(15) + b"\x01"])
def test_push_without_an_id_of_its_own_is_invalid(instance_id: bytes) -> None:
    world = World()
    caller = client(int.from_bytes(instance_id))
    with pytest.raises(Refused) as refusal:
        world.instances.push(caller, 0, subscription_id=0, is_terminating=False, codec=0, size_bytes=0)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


def test_client_gets_the_union_of_its_subscriptions_at_the_shortest_interval() -> None:
    subscriptions = {
        "a": subscription("b.,a.", 5_000, "client_id=orders.*"),
        "b": subscription("a.,c.", 9_000, "client_software_name=librdkafka,client_source_port=5000"),
        "c": subscription("d.", 100, "client_id=pay"),
        "d": subscription("e.", 100, "client_id=rders"),
    }
    found = subscription_of(client(client_id="orders-1"), subscriptions)
    assert (found.metrics, found.interval_ms) == (("a.", "b.", "c."), 5_000)
    assert subscription_of(client(client_id=None), {"c": subscriptions["c"]}).metrics == ()


def test_star_stands_for_all_other_names() -> None:
    found = subscription_of(client(), {"a": subscription("a."), "b": subscription("*")})
    assert found.metrics == ("*",)


def test_subscription_id_is_kafkas_checksum() -> None:
    """CRC-32C of the metrics and the interval as Java writes them, XOR Uuid.hashCode(), as a signed number."""
    found = subscription_of(client(0x0102030405060708090A0B0C0D0E0F10), {"all": subscription("a.,b.")})
    expected = crc32c(b"[a., b.]1000") ^ 0x01020304 ^ 0x05060708 ^ 0x090A0B0C ^ 0x0D0E0F10
    assert found.id % (1 << 32) == expected
    assert -(1 << 31) <= found.id < 1 << 31


def test_number_of_instances_is_bounded_and_silent_ones_are_forgotten() -> None:
    world = World(instances_max=10)
    for number in range(2, 1_000):
        assert world.get(client(number)) is ErrorCode.NONE
    assert len(world.instances.known) == 10
    world.now_ms = SILENCE_MS_LEAST + 1
    world.get(client(1_001))
    assert len(world.instances.known) == 1


def test_long_expressions_of_administrators_meet_long_names_in_linear_time() -> None:
    slow = subscription(match="client_id=(a+)+b")
    assert subscription_of(client(client_id="a" * NAME_CHARS_MAX), {"slow": slow}).metrics == ()
