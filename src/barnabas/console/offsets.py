"""Where partitions begin and end, and how fast they grow: one request a leader, and no waiting for one that is not there.

Owner: the event loop.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.client.admin.partitions import list_offsets_request
from barnabas.client.errors import ClientError, error_code
from barnabas.core.errors import ErrorCode
from barnabas.core.ids import TopicPartition
from barnabas.core.words import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from barnabas.protocol.messages.list_offsets import ListOffsetsResponse

if TYPE_CHECKING:
    from barnabas.console.cluster import ConsoleCluster

#: A rate is taken over at least this long: records come in batches.
_RATE_S: Final = 5.0
#: A partition that was not asked for within this time starts its rate anew.
_RATE_GAP_S: Final = 60.0
_REMEMBERED_MAX: Final = 100_000


class _Sample(NamedTuple):
    at_s: float
    offset: int
    #: What the rate counts from, and what it will count from next.
    from_s: float
    from_offset: int
    next_s: float
    next_offset: int


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
        self._ends: dict[TopicPartition, _Sample] = {}
        self._starts: dict[TopicPartition, tuple[float, int]] = {}

    async def ends(self, partitions: Iterable[TopicPartition], max_age_s: float = 1.0) -> dict[TopicPartition, int]:
        """High watermarks. A partition without a leader is left out."""
        wanted = list(partitions)
        now_s = asyncio.get_running_loop().time()
        old = [p for p in wanted if (s := self._ends.get(p)) is None or now_s - s.at_s > max_age_s]
        if old:
            await self._ask_ends(old)
        return {p: s.offset for p in wanted if (s := self._ends.get(p)) is not None and now_s - s.at_s <= max_age_s}

    async def _ask_ends(self, partitions: list[TopicPartition]) -> None:
        found = await list_offsets(self._cluster, dict.fromkeys(partitions, LATEST))
        now_s = asyncio.get_running_loop().time()
        if len(self._ends) > _REMEMBERED_MAX:
            self._ends.clear()
        for partition, (offset, _) in found.items():
            last = self._ends.get(partition)
            if last is None or now_s - last.at_s > _RATE_GAP_S or offset < last.offset:
                self._ends[partition] = _Sample(now_s, offset, now_s, offset, now_s, offset)
            elif now_s - last.next_s >= _RATE_S:
                self._ends[partition] = _Sample(now_s, offset, last.next_s, last.next_offset, now_s, offset)
            else:
                self._ends[partition] = last._replace(at_s=now_s, offset=offset)

    def rate(self, partitions: Iterable[TopicPartition]) -> float | None:
        """Records a second, over the last seconds; None where nothing was measured yet."""
        total, is_known = 0.0, False
        for partition in partitions:
            sample = self._ends.get(partition)
            if sample is not None and sample.at_s > sample.from_s:
                total += (sample.offset - sample.from_offset) / (sample.at_s - sample.from_s)
                is_known = True
        return round(total, 3) if is_known else None

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
        self._ends.clear()
        self._starts.clear()
