"""The share session of a consumer: epochs, the partitions that a request names, and runs of equal decisions."""

import pytest

from barnabas.base.errors import ConfigError
from barnabas.base.ids import TopicPartition
from barnabas.client.settings import share_config
from barnabas.client.share_session import (
    FINAL_EPOCH,
    AcknowledgementMode,
    AcknowledgeType,
    AcquireMode,
    ShareConfig,
    SharePartition,
    ShareSession,
)

CONFIG = ShareConfig(group_id="g")
ACCEPT, RELEASE, GAP, RENEW = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.GAP,
    AcknowledgeType.RENEW,
)


def place(index: int) -> SharePartition:
    return SharePartition(b"t" * 16, TopicPartition("t", index))


def test_request_names_only_partitions_that_the_broker_does_not_know_and_those_with_decisions() -> None:
    session = ShareSession("m")
    first = session.fetch(CONFIG, [place(0), place(1)], {})
    assert (first.share_session_epoch, first.member_id, first.group_id) == (0, "m", "g")
    assert [each.partition_index for each in first.topics[0].partitions] == [0, 1]
    session.answered()
    second = session.fetch(CONFIG, [place(1), place(2)], {place(1): {5: ACCEPT}})
    assert second.share_session_epoch == 1
    assert [each.partition_index for each in second.topics[0].partitions] == [1, 2]
    assert second.forgotten_topics_data[0].partitions == [0]
    session.answered()
    third = session.fetch(CONFIG, [place(1), place(2)], {})
    assert (third.topics, third.forgotten_topics_data) == ([], [])


def test_consecutive_offsets_with_one_decision_are_one_batch() -> None:
    session = ShareSession("m", epoch=3)
    decisions = {1: ACCEPT, 2: ACCEPT, 3: GAP, 4: RELEASE, 5: RELEASE, 7: RELEASE, 0: ACCEPT}
    request = session.acknowledge("g", {place(0): decisions})
    batches = request.topics[0].partitions[0].acknowledgement_batches
    assert [(each.first_offset, each.last_offset, each.acknowledge_types) for each in batches] == [
        (0, 2, [ACCEPT]),
        (3, 3, [GAP]),
        (4, 5, [RELEASE]),
        (7, 7, [RELEASE]),
    ]
    assert (request.share_session_epoch, request.is_renew_ack) == (3, False)
    assert session.acknowledge("g", {place(0): {1: RENEW}}).is_renew_ack
    assert session.acknowledge("g", {}, is_final=True).share_session_epoch == FINAL_EPOCH


def test_decisions_are_taken_once_and_a_lost_session_begins_again() -> None:
    session = ShareSession("m")
    session.fetch(CONFIG, [place(0)], {})
    session.answered()
    session.decide(place(0), 1, RELEASE)
    session.decide(place(0), 1, ACCEPT)
    assert session.take() == {place(0): {1: ACCEPT}}
    assert session.take() == {}
    session.lost()
    assert (session.is_new, session.partitions) == (True, set())


def test_epoch_after_the_largest_one_is_one() -> None:
    session = ShareSession("m", epoch=2**31 - 1)
    session.answered()
    assert session.epoch == 1


def test_settings_are_read_by_kafkas_names() -> None:
    properties = {
        "share.acknowledgement.mode": "explicit",
        "share.acquire.mode": "record_limit",
        "max.poll.records": "7",
    }
    assert share_config("g", properties) == ShareConfig(
        group_id="g",
        acknowledgement_mode=AcknowledgementMode.EXPLICIT,
        acquire_mode=AcquireMode.RECORD_LIMIT,
        max_poll_records=7,
    )
    for name in ("share.acknowledgement.mode", "share.acquire.mode"):
        with pytest.raises(ConfigError, match=f"{name}='x' is not valid: use"):
            share_config("g", {name: "x"})
