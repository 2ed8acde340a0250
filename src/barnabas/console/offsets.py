"""Where partitions begin and end, and how fast they grow: one request a leader, and no waiting for one that is not there.

Owner: the event loop.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.client.admin.partitions import list_offsets_request
from barnabas.client.errors import ClientError, error_code
from barnabas.console.growth import Growth
from barnabas.core.errors import ErrorCode
from barnabas.core.ids import TopicPartition
from barnabas.core.words import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from barnabas.protocol.messages.list_offsets import ListOffsetsResponse

if TYPE_CHECKING:
    from barnabas.console.cluster import ConsoleCluster

_REMEMBERED_MAX: Final = 100_000


async def list_offsets(
    cluster: "ConsoleCluster", wanted: Mapping[TopicPartition, int], *, isolation_level: int = READ_UNCOMMITTED
) -> dict[TopicPartition, tuple[int, int]]:
    """(offset, timestamp) by partition, for times or `EARLIEST`, `LATEST`; -1 where there is none. What has no leader, or whose
    leader does not answer, is left out."""
    image = await cluster.image()
    by_leader: dict[int, list[TopicPartition]] = {}
    unknown = {p.topic for p in wanted if p.topic not in image.topics}
    known = {**image.topics, **(await cluster.client.topics(unknown) if unknown else {})}
    leaders = {(name, info.index): info.leader for name in {p.topic for p in wanted} for info in known[name].partitions}
    for partition in wanted:
        leader = leaders.get((partition.topic, partition.partition), -1)
        if leader in image.brokers:
            by_leader.setdefault(leader, []).append(partition)

    async def one(leader: int, partitions: list[TopicPartition]) -> ListOffsetsResponse:
        request = list_offsets_request(partitions, wanted, isolation_level)
        return await cluster.client.ask(leader, request, ListOffsetsResponse)

    answers = await cluster.client.io.together([one(leader, asked) for leader, asked in by_leader.items()])
    found: dict[TopicPartition, tuple[int, int]] = {}
    for answer in answers:
        if isinstance(answer, ClientError):
            cluster.outdated("image")
            continue
        for topic in answer.topics:
            for part in topic.partitions:
                if error_code(part.error_code) is ErrorCode.NONE:
                    found[TopicPartition(topic.name, part.partition_index)] = (part.offset, part.timestamp)
                else:
                    cluster.outdated("image")
    return found


class Offsets:
    """Starts and ends that were asked for, each with its age."""

    def __init__(self, cluster: "ConsoleCluster") -> None:
        self._cluster = cluster
        self.growth: Growth[TopicPartition] = Growth()
        self._starts: dict[TopicPartition, tuple[float, int]] = {}

    async def ends(self, partitions: Iterable[TopicPartition], max_age_s: float = 1.0) -> dict[TopicPartition, int]:
        """High watermarks. A partition without a leader is left out."""
        wanted = list(partitions)
        now_s = asyncio.get_running_loop().time()
        old = [each for each in wanted if self.growth.age_s(each, now_s) > max_age_s]
        if old:
            found = await list_offsets(self._cluster, dict.fromkeys(old, LATEST))
            now_s = asyncio.get_running_loop().time()
            for partition, (offset, _) in found.items():
                self.growth.note(partition, offset, now_s)
        return {each: self.growth.value(each) for each in wanted if self.growth.age_s(each, now_s) <= max_age_s}

    def rate(self, partitions: Iterable[TopicPartition]) -> float | None:
        """Records a second, over the last seconds; None where nothing was measured yet."""
        known = [rate for each in partitions if (rate := self.growth.rate(each)) is not None]
        return round(sum(known), 3) if known else None

    async def starts(self, partitions: Iterable[TopicPartition], max_age_s: float = 10.0) -> dict[TopicPartition, int]:
        """Log start offsets: they move with retention only, so they may be older."""
        wanted = list(partitions)
        now_s = asyncio.get_running_loop().time()
        old = [p for p in wanted if (s := self._starts.get(p)) is None or now_s - s[0] > max_age_s]
        if old:
            found = await list_offsets(self._cluster, dict.fromkeys(old, EARLIEST))
            if len(self._starts) > _REMEMBERED_MAX:
                self._starts.clear()
            self._starts.update({partition: (now_s, offset) for partition, (offset, _) in found.items()})
        return {p: s[1] for p in wanted if (s := self._starts.get(p)) is not None and now_s - s[0] <= max_age_s}

    async def stable_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offsets: where a reader of committed records has to stop."""
        found = await list_offsets(self._cluster, dict.fromkeys(partitions, LATEST), isolation_level=READ_COMMITTED)
        return {partition: offset for partition, (offset, _) in found.items()}

    def forget(self) -> None:
        self.growth = Growth()
        self._starts.clear()
