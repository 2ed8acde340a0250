"""When a mirror has all of its source's records: they must survive the loss of the leader."""

from pathlib import Path
from typing import Any

import pytest

from barnabas.base.ids import LeaderEpoch, TopicPartition
from barnabas.broker.features.link import source as link_source
from barnabas.broker.replication.state import PartitionLeadership
from barnabas.client.admin.partitions import ListedOffset
from barnabas.client.image import ClusterImage, PartitionInfo, TopicInfo
from tests.unit.broker.features.link.test_mirror_replica import FOLLOWER, ME, TP, Mirror, batch
from tests.unit.broker.features.link.test_source_recreated import FOUND, source_of


async def test_mirror_is_complete_when_its_replicas_have_what_the_source_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ends(client: Any, wanted: Any) -> dict[TopicPartition, ListedOffset]:
        return {TP: ListedOffset(2, -1, 2)}

    monkeypatch.setattr(link_source, "list_offsets", ends)

    async def complete(mirror: Mirror) -> list[TopicPartition]:
        """Return the complete mirrors after the source has been quiet for long enough."""
        source = source_of(FOUND)
        source.replicas[TP] = mirror.replica
        mirror.replica.source_leader = 1
        mirror.receive(batch(0, 2), batch(1, 2), high_watermark=2)
        assert await source.are_complete([TP]) == []
        mirror.stored.clock.advance_ms(link_source.QUIET_MS)
        await source.client.close()
        return await source.are_complete([TP])

    for folder in ("alone", "followed"):
        (tmp_path / folder).mkdir()
    alone = Mirror(tmp_path / "alone")
    assert await complete(alone) == [TP]
    followed = Mirror(tmp_path / "followed")
    both = PartitionLeadership(
        leader=ME, leader_epoch=LeaderEpoch(8), isr=(ME, FOLLOWER), partition_epoch=8, replicas=(ME, FOLLOWER)
    )
    followed.partition.become_leader(both, now_ms=0)
    assert await complete(followed) == []  # the follower has nothing yet


async def test_leader_of_the_past_is_not_followed(tmp_path: Path) -> None:
    """A broker cut off from its cluster still believes that it leads. Following it would truncate the mirror."""

    mirror = Mirror(tmp_path)
    mirror.receive(batch(0, 2), batch(1, 4), high_watermark=2)
    source = source_of(FOUND)
    partition = PartitionInfo(index=0, leader=1, leader_epoch=2, replicas=(1,), isr=(1,), offline=())
    known: Any = {1: None}
    image = ClusterImage(brokers=known, topics={TP.topic: TopicInfo(TP.topic, FOUND, False, (partition,))})
    source._assign_one(TP, mirror.replica, image)
    assert "has epoch 2, but the mirror has records of 4" in (mirror.replica.error or "")
    await source.client.close()
