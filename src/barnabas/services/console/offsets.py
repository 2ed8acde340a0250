"""Starts and ends of partitions, and how fast they grow: one request per leader; unreachable leaders are skipped.

Owner: the event loop.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from barnabas.client.admin.partitions import list_offsets_request
from barnabas.client.errors import ClientError
from barnabas.services.console.growth import Growth
from barnabas.wire.messages.list_offsets import ListOffsetsResponse

if TYPE_CHECKING:
    from barnabas.services.console.cluster import ConsoleCluster

_REMEMBERED_MAX: Final = 100_000
#: Feeds of all viewers have the same ticks: requests within this time are combined.
_GATHER_S: Final = 0.005
#: An end that has not changed for this long counts as idle.
_STILL_S: Final = 10.0


async def list_offsets(
    cluster: "ConsoleCluster", wanted: Mapping[TopicPartition, int], *, isolation_level: int = READ_UNCOMMITTED
) -> dict[TopicPartition, tuple[int, int]]:
    """Return (offset, timestamp) by partition, for times or `EARLIEST`, `LATEST`; -1 if there is no such record. Partitions
    without a leader that answers are left out."""
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
                if not part.error_code:
                    found[TopicPartition(topic.name, part.partition_index)] = (part.offset, part.timestamp)
                else:
                    cluster.outdated("image")
    return found


class Offsets:
    """Cached starts and ends, each with its age."""

    def __init__(self, cluster: "ConsoleCluster") -> None:
        self._cluster = cluster
        self.growth: Growth[TopicPartition] = Growth()
        self._starts: dict[TopicPartition, tuple[float, int]] = {}
        self._wanted: dict[TopicPartition, int] = {}
        self._asking: asyncio.Future[None] | None = None

    async def ends(
        self, partitions: Iterable[TopicPartition], max_age_s: float = 1.0, *, still_age_s: float = 0.0
    ) -> dict[TopicPartition, int]:
        """Return high watermarks. A partition without a leader is left out.

        With `still_age_s`, the ends of idle partitions may be older.
        """
        wanted = list(partitions)
        began_s = asyncio.get_running_loop().time()

        def is_old(each: TopicPartition) -> bool:
            age_s = self.growth.age_s(each, began_s)
            if age_s <= max_age_s:
                return False
            return age_s > still_age_s or not self.growth.is_still(each, began_s, _STILL_S)

        old = [each for each in wanted if is_old(each)]
        if old:
            await self._ask_together(old)
        return {each: self.growth.value(each) for each in wanted if not is_old(each)}

    async def ends_in_sight(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return ends for the rows of a list, which is refreshed every two seconds: idle partitions are read every other
        time."""
        return await self.ends(partitions, 1.5, still_age_s=3.5)

    async def _ask_together(self, partitions: Iterable[TopicPartition]) -> None:
        """Combine concurrent questions into one request to each broker."""
        self._wanted.update(dict.fromkeys(partitions, LATEST))
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_future()
            self._cluster.tasks.start(self._ask(self._asking), "ask for ends")
        await asyncio.shield(self._asking)

    async def _ask(self, answered: "asyncio.Future[None]") -> None:
        try:
            await asyncio.sleep(_GATHER_S)
            wanted, self._wanted, self._asking = self._wanted, {}, None
            found = await list_offsets(self._cluster, wanted)
        except Exception as error:
            answered.set_exception(error)
            answered.exception()  # marks the error as retrieved: all callers may have gone
        except asyncio.CancelledError:
            answered.cancel()
            raise
        else:
            now_s = asyncio.get_running_loop().time()
            for partition, (offset, _) in found.items():
                self.growth.note(partition, offset, now_s)
            answered.set_result(None)

    def rate(self, partitions: Iterable[TopicPartition]) -> float | None:
        """Return records per second over the last seconds; None if nothing was measured yet."""
        known = [rate for each in partitions if (rate := self.growth.rate(each)) is not None]
        return round(sum(known), 3) if known else None

    async def starts(self, partitions: Iterable[TopicPartition], max_age_s: float = 10.0) -> dict[TopicPartition, int]:
        """Return log start offsets: only retention moves them, so they may be older."""
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
        """Return last stable offsets: the ends for readers of committed records."""
        found = await list_offsets(self._cluster, dict.fromkeys(partitions, LATEST), isolation_level=READ_COMMITTED)
        return {partition: offset for partition, (offset, _) in found.items()}

    def forget(self) -> None:
        self.growth = Growth()
        self._starts.clear()
