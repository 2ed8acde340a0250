"""Which quota applies, and what it costs to go over it."""

import itertools
import time

import pytest

from barnabas.broker.security import quotas
from barnabas.broker.security.quotas import ABSENT, DEFAULT, METERS_MAX, ClientQuotas, Quota, entity_of
from barnabas.broker.security.rates import THROTTLE_MS_MAX, Rate, TokenBucket

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


def test_without_quotas_no_client_waits() -> None:
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


def test_unsent_bytes_do_not_count() -> None:
    quota = limited(("alice", ABSENT), 1_000)
    assert quota.record(Quota.PRODUCE, "alice", "app", 20_000, now_ms=0) > 0
    quota.add(Quota.PRODUCE, "alice", "app", -20_000, now_ms=0)
    assert quota.record(Quota.PRODUCE, "alice", "app", 10_000, now_ms=0) == 0


def test_old_windows_are_forgotten() -> None:
    rate = Rate(windows=11, window_ms=1_000)
    rate.record(11_000, 0)
    assert rate.per_second(0) == pytest.approx(1_100)
    assert rate.per_second(10_999) == pytest.approx(11_000 / 10.999)
    assert rate.per_second(11_000) == 0 and rate.is_silent(11_000)


def test_sample_that_overlaps_the_windows_counts_whole_and_so_does_its_time() -> None:
    rate = Rate(windows=2, window_ms=1_000)
    rate.record(500, 0)
    rate.record(500, 900)
    assert rate.per_second(2_500) == pytest.approx(1_000 / 2.5)
    assert rate.per_second(2_900) == 0


def test_quota_of_nothing_waits_as_long_as_can_be_said() -> None:
    assert limited(("alice", ABSENT), 0).record(Quota.PRODUCE, "alice", "app", 1, now_ms=0) == THROTTLE_MS_MAX


def test_invalid_znode_sets_no_limit() -> None:
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


# -- time of requests -------------------------------------------------------------------------------------------------


def test_time_over_its_share_waits_no_longer_than_a_window() -> None:
    quota = made()
    quota.entity_changed(("alice", ABSENT), {Quota.REQUEST.value: "10"})
    assert Quota.REQUEST in quota.limited
    # One second of the loop is 100 percent-seconds: ten percent over ten seconds.
    assert quota.record(Quota.REQUEST, "alice", "app", 100.0, now_ms=0) == 0
    assert quota.record(Quota.REQUEST, "alice", "app", 1.0, now_ms=0) == 100
    assert quota.record(Quota.REQUEST, "alice", "app", 500.0, now_ms=0) == 1_000
    quota.entity_changed(("alice", ABSENT), {})
    assert Quota.REQUEST not in quota.limited


def test_throttled_entity_and_time_are_reported() -> None:
    reported: list[object] = []
    quota = ClientQuotas(windows=11, window_ms=1_000, on_throttled=lambda *what: reported.append(what))
    quota.entity_changed((DEFAULT, ABSENT), {PRODUCE: "1000"})
    quota.record(Quota.PRODUCE, "al ice", "app", 10_000, now_ms=0)
    assert reported == []
    quota.record(Quota.PRODUCE, "al ice", "app", 1_000, now_ms=0)
    assert reported == [(Quota.PRODUCE, ("al%20ice", ABSENT), 1_000)]


def test_fetch_is_limited_to_the_bytes_of_the_windows() -> None:
    quota = made()
    assert quota.bytes_max(Quota.CONSUME, "alice", "app") is None
    quota.entity_changed(("alice", ABSENT), {Quota.CONSUME.value: "1000"})
    most = quota.bytes_max(Quota.CONSUME, "alice", "app")
    assert most == 10_000
    assert quota.record(Quota.CONSUME, "alice", "app", most, now_ms=0) == 0


# -- changes of topics (KIP-599) --------------------------------------------------------------------------------------


def mutating(limit: float) -> ClientQuotas:
    quota = ClientQuotas(windows=11, window_ms=1_000, controller_windows=10, controller_window_ms=1_000)
    quota.entity_changed((ABSENT, "app"), {Quota.CONTROLLER_MUTATION.value: str(limit)})
    return quota


def test_one_request_may_overdraw_and_the_next_is_refused_until_the_bucket_is_back_at_zero() -> None:
    quota, now_ms = mutating(5.0), [0]
    # 50 permits at the start; 80 go below zero by 30, which takes six seconds.
    assert quota.mutations("alice", "app", strict=True, now_ms=lambda: now_ms[0]).take(80)
    refused = quota.mutations("bob", "app", strict=True, now_ms=lambda: now_ms[0])
    assert not refused.take(1) and refused.throttle_ms == 6_000
    now_ms[0] = 2_500
    assert refused.throttle_ms == 3_500
    now_ms[0] = 5_999
    assert not quota.mutations("bob", "app", strict=True, now_ms=lambda: now_ms[0]).take(1)
    now_ms[0] = 6_000
    assert quota.mutations("bob", "app", strict=True, now_ms=lambda: now_ms[0]).take(1)


def test_older_client_is_never_refused_but_waits() -> None:
    quota = mutating(5.0)
    patient = quota.mutations("alice", "app", strict=False, now_ms=lambda: 0)
    assert patient.take(50) and patient.throttle_ms == 0
    assert patient.take(10) and patient.throttle_ms == 2_000
    assert patient.take(10) and patient.throttle_ms == 4_000


def test_other_clients_are_not_limited_by_it() -> None:
    free = mutating(0.1).mutations("alice", "other", strict=True, now_ms=lambda: 0)
    assert all(free.take(1_000) for _ in range(10)) and free.throttle_ms == 0


def test_bucket_does_not_fill_beyond_its_windows() -> None:
    bucket = TokenBucket(windows=10, window_ms=1_000)
    assert bucket.tokens(5.0, 0) == 50
    bucket.take(50, 5.0, 0)
    assert bucket.tokens(5.0, 1_000) == 5
    assert bucket.tokens(5.0, 3_600_000) == 50 and bucket.is_silent(3_600_000)


def test_very_many_client_ids_neither_grow_without_end_nor_cost_a_search_each() -> None:
    quotas = ClientQuotas(windows=11, window_ms=1_000)
    quotas.entity_changed((ABSENT, DEFAULT), {"producer_byte_rate": "1000"})
    for number in range(25_000):
        quotas.record(Quota.PRODUCE, "eve", f"id-{number}", 1, now_ms=1_000)
    assert len(quotas._rates) <= METERS_MAX
    began_s = time.process_time()
    for number in range(2_000):
        quotas.record(Quota.PRODUCE, "eve", f"new-{number}", 1, now_ms=1_000)
    assert time.process_time() - began_s < 3.0, "5 ms each would be ten seconds"


def test_client_id_of_any_length_is_not_kept() -> None:
    quotas = ClientQuotas(windows=11, window_ms=1_000)
    quotas.entity_changed((ABSENT, DEFAULT), {"producer_byte_rate": "1"})
    long = "x" * 30_000
    assert quotas.record(Quota.PRODUCE, "eve", long, 1_000_000, now_ms=1_000) > 0
    assert quotas.record(Quota.PRODUCE, "eve", long + "y", 0, now_ms=1_000) == 0
    assert all(len(part) < 300 for _, entity in quotas._rates for part in entity)
