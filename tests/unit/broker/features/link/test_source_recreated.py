"""A topic recreated at the source does not truncate the log here: the requests that decide it name the topic, not its id."""

from random import Random
from typing import Any

import pytest

from barnabas.base.ids import BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition
from barnabas.broker.features.link.settings import LinkSettings
from barnabas.broker.features.link.source import MirrorSource
from barnabas.broker.replication.fetch_steps import EpochAnswer, OffsetsAnswer
from barnabas.broker.replication.leader_endpoint import RemoteLeader
from barnabas.broker.storage.epoch_cache import EpochEnd
from barnabas.client.image import ClusterImage, TopicInfo
from tests.manual_time import ManualClock

TP = TopicPartition("orders", 0)
FOUND, ANEW = TopicId(b"1" * 16), TopicId(b"2" * 16)


def source_of(topic_id: bytes) -> MirrorSource:
    """Return the metadata of the source with the topic's new id; the link found the topic with the id FOUND."""

    async def refresh(topics: set[str]) -> ClusterImage:
        return ClusterImage(topics={name: TopicInfo(name, topic_id, False, ()) for name in topics})

    unused: Any = None
    source = MirrorSource(
        "link",
        LinkSettings.of({"bootstrap.servers": "127.0.0.1:1"}, name="link"),
        "earliest",
        unused,
        make_replica=unused,
        leadership=unused,
        source_id=lambda topic: FOUND,
        is_adopted=unused,
        on_recreated=unused,
        clock=ManualClock(),
        spawn=unused,
        chance=Random(1),
    )
    source.client.refresh = refresh  # type: ignore[method-assign,assignment]
    return source


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers of the leader of a topic with that name."""

    async def epoch_ends(self: RemoteLeader, questions: Any) -> dict[TopicPartition, EpochAnswer]:
        return {TP: EpochAnswer(0, EpochEnd(LeaderEpoch(0), Offset(3)))}

    async def list_offsets(self: RemoteLeader, epochs: Any) -> dict[TopicPartition, OffsetsAnswer]:
        return {TP: OffsetsAnswer(0, 0, 3)}

    monkeypatch.setattr(RemoteLeader, "epoch_ends", epoch_ends)
    monkeypatch.setattr(RemoteLeader, "list_offsets", list_offsets)


async def test_answers_of_a_recreated_topic_are_refused(answers: None) -> None:
    source = source_of(ANEW)
    leader = source._endpoint(BrokerId(1))
    with pytest.raises(ConnectionError, match="recreated at the source: orders"):
        await leader.epoch_ends({})
    with pytest.raises(ConnectionError, match="recreated at the source: orders"):
        await leader.list_offsets({})
    assert source._changed.is_set()  # the next look at the source stops the mirror
    await source.client.close()


async def test_answers_of_the_topic_that_was_found_or_of_a_source_without_ids_are_taken(answers: None) -> None:
    for topic_id in (FOUND, bytes(16)):
        source = source_of(topic_id)
        leader = source._endpoint(BrokerId(1))
        assert (await leader.epoch_ends({}))[TP].end.end_offset == 3
        assert TP in await leader.list_offsets({})
        await source.client.close()
