"""What groups have committed, and how far that is behind: asked for many groups at once, and remembered.

Owner: the event loop. Groups in sight are asked for when somebody looks. All of them are gone through in slices, a few at each
look, so that a cluster of 15,000 groups is never asked for all at once. Lags of the last hour are kept of groups that somebody
looked at.
"""

import asyncio
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from barnabas.client.admin.groups import CLASSIC, committed_offsets
from barnabas.client.errors import ClientError, UnsupportedVersion, check
from barnabas.console.growth import Growth
from barnabas.console.web import refusal_for
from barnabas.core.clock import SystemClock
from barnabas.core.errors import ErrorCode
from barnabas.core.ids import TopicPartition
from barnabas.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from barnabas.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)

if TYPE_CHECKING:
    from barnabas.console.cluster import ConsoleCluster

#: OffsetFetch for several groups came with version 8; from version 10 on it names topics by ids only.
_MANY_GROUPS: Final = 8
_BY_NAME: Final = 9
_GROUPS_A_REQUEST: Final = 100
#: Of a sweep through all groups: those that one look asks for.
SWEEP_SLICE: Final = 200
#: Once all are known, they are gone through in this time, or slower, so that no more than so many are asked for in a second.
_SWEEP_S: Final = 30.0
_SWEPT_A_SECOND: Final = 20
#: Consumers commit every five seconds, unless they are told otherwise.
COMMIT_RATE_S: Final = 30.0
SAMPLE_S: Final = 10.0
HISTORY_POINTS: Final = 360
#: Groups whose lag is sampled, and partitions of them with a history of their own.
SAMPLED_MAX: Final = 200
SERIES_MAX: Final = 2_000
_HOUR_S: Final = SAMPLE_S * HISTORY_POINTS


@dataclass(frozen=True, slots=True)
class Listed:
    group: str
    state: str
    type: str
    protocol: str
    coordinator: int


@dataclass(slots=True)
class _Committed:
    at_s: float
    offsets: Mapping[TopicPartition, int]


@dataclass(slots=True)
class History:
    """Wall-clock seconds, and the lag then; -1 where it was not known."""

    at_s: "array[int]" = field(default_factory=lambda: array("q"))
    total: "array[int]" = field(default_factory=lambda: array("q"))
    partitions: "dict[TopicPartition, array[int]]" = field(default_factory=dict)

    def add(self, now_s: int, lags: Mapping[TopicPartition, int], *, with_partitions: bool) -> None:
        self.at_s.append(now_s)
        self.total.append(sum(lags.values()))
        wanted = lags if with_partitions else [each for each in lags if each in self.partitions]
        for each in wanted:
            series = self.partitions.setdefault(each, array("q"))
            series.extend([-1] * (len(self.at_s) - 1 - len(series)))
            series.append(lags[each])
        for series in (self.at_s, self.total, *self.partitions.values()):
            if len(series) > HISTORY_POINTS:
                del series[0]

    def series(self, partition: TopicPartition) -> list[int]:
        known = self.partitions.get(partition)
        if known is None:
            return []
        return [*known, *[-1] * (len(self.at_s) - len(known))]


class LagBook:
    def __init__(self, cluster: "ConsoleCluster") -> None:
        self._cluster = cluster
        self._committed: dict[str, _Committed] = {}
        self.growth: Growth[tuple[str, TopicPartition]] = Growth(COMMIT_RATE_S)
        self.history: dict[str, History] = {}
        #: When somebody last looked at a group.
        self._looked_s: dict[str, float] = {}
        self._sampler: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None

    # -- which groups there are -----------------------------------------------------------------------------------------

    async def groups(self) -> dict[str, Listed]:
        """By id, with the broker that coordinates each. Groups of a broker that does not answer are not there."""

        async def ask() -> dict[str, Listed]:
            async def one(broker_id: int) -> ListGroupsResponse:
                response = await self._cluster.client.ask(broker_id, ListGroupsRequest(), ListGroupsResponse)
                check(response.error_code)
                return response

            found: dict[str, Listed] = {}
            answers = await self._cluster.on_brokers(one)
            for broker_id, answer in answers.items():
                if isinstance(answer, ClientError):
                    if len(answers) == 1 or not answer.retriable:
                        raise answer
                    continue
                for group in answer.groups:
                    kind = group.group_type.capitalize() or CLASSIC
                    found[group.group_id] = Listed(
                        group.group_id, group.group_state, kind, group.protocol_type, broker_id
                    )
            return found

        return await self._cluster.kept("groups", 1.5, ask, paced_s=30.0)

    # -- what they have committed ---------------------------------------------------------------------------------------

    async def committed(self, groups: Iterable[str], max_age_s: float) -> dict[str, Mapping[TopicPartition, int]]:
        """By group. One whose coordinator does not answer is left out."""
        wanted = list(groups)
        now_s = asyncio.get_running_loop().time()
        old = [
            group for group in wanted if (known := self._committed.get(group)) is None or now_s - known.at_s > max_age_s
        ]
        if old:
            await self._ask(old)
        now_s = asyncio.get_running_loop().time()
        return {
            group: known.offsets
            for group in wanted
            if (known := self._committed.get(group)) is not None and now_s - known.at_s <= max_age_s + 1
        }

    async def _ask(self, groups: Sequence[str]) -> None:
        listed = await self.groups()
        by_broker: dict[int, list[str]] = {}
        for group in groups:
            by_broker.setdefault(listed[group].coordinator if group in listed else -1, []).append(group)
        unlisted = by_broker.pop(-1, [])
        slices = [
            (broker_id, some[at : at + _GROUPS_A_REQUEST])
            for broker_id, some in by_broker.items()
            for at in range(0, len(some), _GROUPS_A_REQUEST)
        ]
        outcomes = await self._cluster.client.io.together([self._ask_many(*each) for each in slices])
        for outcome, (_, some) in zip(outcomes, slices, strict=True):
            if isinstance(outcome, UnsupportedVersion):
                unlisted += some
            elif isinstance(outcome, ClientError):
                self._cluster.outdated("groups")
        for group in unlisted:
            found = await committed_offsets(self._cluster.client, group)
            self._note(group, {partition: each.offset for partition, each in found.items()})

    async def _ask_many(self, broker_id: int, groups: Sequence[str]) -> None:
        response = await self._cluster.client.ask(
            broker_id,
            OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups], require_stable=False
            ),
            OffsetFetchResponse,
            version_min=_MANY_GROUPS,
            version_max=_BY_NAME,
        )
        for answer in response.groups:
            if answer.error_code == ErrorCode.NOT_COORDINATOR:
                self._cluster.outdated("groups")
            if not answer.error_code:
                self._note(
                    answer.group_id,
                    {
                        TopicPartition(topic.name, part.partition_index): part.committed_offset
                        for topic in answer.topics
                        for part in topic.partitions
                        if not part.error_code and part.committed_offset >= 0
                    },
                )

    def _note(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        now_s = asyncio.get_running_loop().time()
        self._committed[group] = _Committed(now_s, offsets)
        if group in self._looked_s:
            for partition, offset in offsets.items():
                self.growth.note((group, partition), offset, now_s)

    async def lags(self, groups: Iterable[str], max_age_s: float) -> dict[str, dict[TopicPartition, int]]:
        """By group and partition. Partitions without a leader are left out."""
        committed = await self.committed(groups, max_age_s)
        partitions = {partition for offsets in committed.values() for partition in offsets}
        ends = await self._cluster.offsets.ends(partitions, max_age_s)
        return {
            group: {each: max(ends[each] - offset, 0) for each, offset in offsets.items() if each in ends}
            for group, offsets in committed.items()
        }

    # -- all of them, a few at a time -----------------------------------------------------------------------------------

    async def sweep(self) -> tuple[int, int]:
        """Ask for those groups that were not asked for the longest time. How many are known, of how many."""
        listed = await self.groups()
        max_age_s = max(_SWEEP_S, len(listed) / _SWEPT_A_SECOND)
        for group in [group for group in self._committed if group not in listed and group not in self._looked_s]:
            del self._committed[group]
        now_s = asyncio.get_running_loop().time()
        never = -1.0
        ages = {group: known.at_s if (known := self._committed.get(group)) else never for group in listed}
        stale = sorted((group for group, at_s in ages.items() if now_s - at_s > max_age_s), key=ages.__getitem__)
        if stale:
            # What was never asked for first: until then a sum is wrong, not only old.
            await self.committed(stale[:SWEEP_SLICE], max_age_s)
        return sum(group in self._committed for group in listed), len(listed)

    def sweep_behind(self) -> None:
        """As `sweep`, and nobody waits for it."""
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = self._cluster.tasks.start(self._sweep_quietly(), "sweep groups")

    async def _sweep_quietly(self) -> None:
        try:
            await self.sweep()
        except Exception as error:
            refusal_for(error, "sweep groups")  # logs a bug; who may not see groups sees topics without lags

    def known(self) -> Mapping[str, Mapping[TopicPartition, int]]:
        return {group: known.offsets for group, known in self._committed.items()}

    def groups_of_topic(self, topic: str) -> dict[str, dict[TopicPartition, int]]:
        """Of the groups that are known: what those that read this topic have committed of it."""
        found: dict[str, dict[TopicPartition, int]] = {}
        for group, known in self._committed.items():
            offsets = {partition: offset for partition, offset in known.offsets.items() if partition.topic == topic}
            if offsets:
                found[group] = offsets
        return found

    # -- the last hour --------------------------------------------------------------------------------------------------

    def look(self, group: str | None = None) -> None:
        """Somebody looks at groups, or at one: its lag is sampled from now on, for an hour after the last look."""
        now_s = asyncio.get_running_loop().time()
        if group is not None:
            self._looked_s.pop(group, None)
            self._looked_s[group] = now_s
            if len(self._looked_s) > SAMPLED_MAX:
                self._forget(next(iter(self._looked_s)))
        if self._sampler is None or self._sampler.done():
            self._sampler = self._cluster.tasks.start(self._sample_for_an_hour(now_s), "sample lags")
        self._last_look_s = now_s

    def _forget(self, group: str) -> None:
        self._looked_s.pop(group, None)
        self.history.pop(group, None)

    async def _sample_for_an_hour(self, began_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._last_look_s = began_s
        while loop.time() - self._last_look_s < _HOUR_S:
            try:
                await self.sample()
            except Exception as error:
                refusal_for(error, "sample lags")  # logs a bug; of all else, whoever looks is told
            await asyncio.sleep(SAMPLE_S)

    async def sample(self) -> None:
        listed = await self.groups()
        now_s = asyncio.get_running_loop().time()
        for group in [group for group, at_s in self._looked_s.items() if now_s - at_s > _HOUR_S]:
            self._forget(group)
        wanted = dict.fromkeys(self._looked_s)
        if len(listed) <= SAMPLED_MAX:
            wanted |= dict.fromkeys(listed)
        for group in [group for group in self.history if group not in wanted]:
            del self.history[group]
        wall_s = SystemClock().now_ms() // 1000
        series = sum(len(history.partitions) for history in self.history.values())
        for group, lags in (await self.lags(wanted, 2.0)).items():
            history = self.history.setdefault(group, History())
            with_partitions = group in self._looked_s and series + len(lags) <= SERIES_MAX
            series += len(lags) if with_partitions and not history.partitions else 0
            history.add(wall_s, lags, with_partitions=with_partitions)

    def forget(self) -> None:
        """After a change: what was committed is asked for again. The last hour stays."""
        self._committed.clear()

    def stop(self) -> None:
        for task in (self._sampler, self._sweeping):
            if task is not None:
                task.cancel()
