"""Which quota applies, and what it costs to go over it."""

import itertools

import pytest

from barnabas.security import quotas
from barnabas.security.quotas import ABSENT, DEFAULT, THROTTLE_MS_MAX, ClientQuotas, Quota, Rate, entity_of

PRODUCE = Quota.PRODUCE.value
#: Kafka's order, the most particular first.
LEVELS = [
    ("alice", "app"),
    ("alice", DEFAULT),
    ("alice", ABSENT),
    (DEFAULT, "app"),
    (DEFAULT, DEFAULT),
    (DEFAULT, ABSENT),
    (ABSENT, "app"),
    (ABSENT, DEFAULT),
]


def made() -> ClientQuotas:
    return ClientQuotas(windows=11, window_ms=1_000)


def limited(entity: tuple[str, str], limit: int) -> ClientQuotas:
    quota = ClientQuotas(windows=11, window_ms=1_000)
    quota.entity_changed(entity, {PRODUCE: str(limit)})
    return quota


def test_without_quotas_nobody_waits() -> None:
    assert made().record(Quota.PRODUCE, "alice", "app", 10**12, now_ms=0) == 0


@pytest.mark.parametrize(("level", "below"), [*itertools.combinations(LEVELS, 2)])
def test_more_particular_quota_counts(level: tuple[str, str], below: tuple[str, str]) -> None:
    quota = made()
    quota.entity_changed(below, {PRODUCE: "1"})
    quota.entity_changed(level, {PRODUCE: "1000000"})
    assert quota.record(Quota.PRODUCE, "alice", "app", 1_000, now_ms=0) == 0
    quota.entity_changed(level, {})
    assert quota.record(Quota.PRODUCE, "alice", "app", 1_000, now_ms=0) > 0


def test_wait_brings_the_rate_back_to_the_limit() -> None:
    quota = limited(("alice", ABSENT), 1_000)
    # Ten seconds count from the start: 10 000 bytes are the limit, 15 000 are half as much again.
    assert quota.record(Quota.PRODUCE, "alice", "app", 10_000, now_ms=0) == 0
    assert quota.record(Quota.PRODUCE, "alice", "app", 5_000, now_ms=0) == 5_000


def test_steady_client_gets_the_limit_within_a_tenth() -> None:
    limit, sent, now_ms = 100_000, 0, 0
    quota = limited(("alice", ABSENT), limit)
    while now_ms < 90_000:
        # The first windows may be spent at once, as with Kafka; after them it is the limit.
        sent += 20_000 if now_ms >= 20_000 else 0
        now_ms += 1 + quota.record(Quota.PRODUCE, "alice", "app", 20_000, now_ms=now_ms)
    assert sent / ((now_ms - 20_000) / 1000) == pytest.approx(limit, rel=0.1)


def test_default_gives_each_user_a_rate_of_its_own() -> None:
    quota = limited((DEFAULT, ABSENT), 1_000)
    assert quota.record(Quota.PRODUCE, "alice", "app", 50_000, now_ms=0) > 0
    assert quota.record(Quota.PRODUCE, "bob", "app", 5_000, now_ms=0) == 0


def test_user_quota_is_shared_by_its_clients() -> None:
    quota = limited(("alice", ABSENT), 1_000)
    assert quota.record(Quota.PRODUCE, "alice", "one", 9_000, now_ms=0) == 0
    assert quota.record(Quota.PRODUCE, "alice", "two", 9_000, now_ms=0) > 0


def test_produce_and_consume_are_counted_apart() -> None:
    quota = limited(("alice", ABSENT), 1)
    assert quota.record(Quota.CONSUME, "alice", "app", 10**9, now_ms=0) == 0


def test_what_is_not_sent_does_not_count() -> None:
    quota = limited(("alice", ABSENT), 1_000)
    assert quota.record(Quota.PRODUCE, "alice", "app", 20_000, now_ms=0) > 0
    quota.unrecord(Quota.PRODUCE, "alice", "app", 20_000, now_ms=0)
    assert quota.record(Quota.PRODUCE, "alice", "app", 10_000, now_ms=0) == 0


def test_old_windows_are_forgotten() -> None:
    rate = Rate(windows=11, window_ms=1_000)
    rate.record(11_000, 0)
    assert rate.per_second(0) == pytest.approx(1_100)
    assert rate.per_second(10_999) == pytest.approx(11_000 / 10.999)
    assert rate.per_second(11_000) == 0 and rate.is_silent(11_000)


def test_quota_of_nothing_waits_as_long_as_can_be_said() -> None:
    assert limited(("alice", ABSENT), 0).record(Quota.PRODUCE, "alice", "app", 1, now_ms=0) == THROTTLE_MS_MAX


def test_nonsense_in_a_znode_is_no_limit() -> None:
    quota = made()
    quota.entity_changed(("alice", ABSENT), {PRODUCE: "plenty"})
    assert quota.record(Quota.PRODUCE, "alice", "app", 10**9, now_ms=0) == 0


def test_name_that_looks_like_the_default_is_not_the_default() -> None:
    quota = limited((DEFAULT, ABSENT), 1_000_000)
    quota.entity_changed(("%3Cdefault%3E", ABSENT), {PRODUCE: "1"})
    assert quota.record(Quota.PRODUCE, "<default>", "app", 1_000, now_ms=0) > 0
    assert quota.record(Quota.PRODUCE, "alice", "app", 1_000, now_ms=0) == 0


def test_meters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "METERS_MAX", 10)
    quota = limited((DEFAULT, ABSENT), 1_000)
    for number in range(100):
        quota.record(Quota.PRODUCE, f"u{number}", "app", 1, now_ms=number * 20_000)
    assert len(quota._rates) <= 10 and len(quota._found) <= 10


def test_entities_of_paths() -> None:
    assert entity_of("users", "alice") == ("alice", ABSENT)
    assert entity_of("users", "alice/clients/app") == ("alice", "app")
    assert entity_of("users", "<default>/clients/<default>") == (DEFAULT, DEFAULT)
    assert entity_of("clients", "app") == (ABSENT, "app")
    assert entity_of("ips", "10.0.0.1") is None
