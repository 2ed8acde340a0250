"""Committed offsets of groups, and their lag: requested for many groups at once, and cached.

Owner: the event loop. Groups on the screen are requested when a user looks. All other groups are requested in slices, a few at
a time, so that a cluster of 15,000 groups never has to answer for all of them at once. For groups that a user has looked at,
the lags of the last hour are kept.
"""

import asyncio
import itertools
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from sys import intern
from typing import TYPE_CHECKING, Final

from barnabas.base.clock import SystemClock
from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.recent import Recent
from barnabas.client.admin.groups import CLASSIC, committed_offsets
from barnabas.client.admin.share_groups import SHARE
from barnabas.client.errors import ClientError, UnsupportedVersion, check
from barnabas.services.console.commits import UNKNOWN, Commits, Totals
from barnabas.services.console.growth import Growth
from barnabas.services.console.web import refusal_for
from barnabas.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)

if TYPE_CHECKING:
    from barnabas.services.console.cluster import ConsoleCluster

#: OffsetFetch takes several groups since version 8; from version 10 on it only names topics by id.
_MANY_GROUPS: Final = 8
_BY_NAME: Final = 9
_GROUPS_A_REQUEST: Final = 100
#: New groups are requested in slices of this size with pauses between: 15,000 groups are known after ten seconds.
NEW_SLICE: Final = 100
_NEW_PAUSE_S: Final = 0.05
#: Later, all groups are refreshed in slices of this size. Lists sorted by lag are corrected sooner, because groups that seem
#: to be far behind come on the screen and are requested.
_SWEPT: Final = 50
_SWEEP_PAUSE_S: Final = 5.0
#: Keep sweeping for this long after a user last looked.
_SWEEP_S: Final = 30.0
#: In a list, a group without members and without a commit for this long is requested less often.
_IDLE_AFTER_S: Final = 60.0
_IDLE_AGE_S: Final = 10.0
_EMPTY: Final = "Empty"
#: Maximum age of log ends that are not on the screen, for sums over everything.
_FAR_AGE_S: Final = 60.0
_FAR_EVERY_S: Final = 5.0
_TOTALS_AGE_S: Final = 1.0
#: Consumers commit every five seconds by default.
COMMIT_RATE_S: Final = 30.0
SAMPLE_S: Final = 10.0
HISTORY_POINTS: Final = 360
#: Limits of groups whose lag is sampled, and of their partitions with a history of their own.
SAMPLED_MAX: Final = 200
SERIES_MAX: Final = 2_000
_HOUR_S: Final = SAMPLE_S * HISTORY_POINTS


@dataclass(slots=True)
class Listed:
    group: str
    state: str
    type: str
    protocol: str
    coordinator: int


class Listing:
    """The groups of a cluster, by id."""

    def __init__(self, found: Iterable[Listed]) -> None:
        self._orders: dict[str, list[Listed]] = {"group": sorted(found, key=lambda each: each.group)}
        self.by_id: dict[str, Listed] = {each.group: each for each in self._orders["group"]}
        self.states: list[str] = sorted({each.state for each in self.by_id.values() if each.state})

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, group: str) -> bool:
        return group in self.by_id

    def get(self, group: str) -> Listed | None:
        return self.by_id.get(group)

    def ordered(self, by: str) -> list[Listed]:
        """Return the groups sorted by a field, then by id; the list is cached and must not be changed."""
        if by not in self._orders:
            self._orders[by] = sorted(self._orders["group"], key=lambda each: str(getattr(each, by)))
        return self._orders[by]


@dataclass(slots=True)
class History:
    """Wall-clock seconds, and the lag at that time; -1 if it was unknown."""

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


def _partitions(committed: Mapping[str, Mapping[TopicPartition, int]]) -> set[TopicPartition]:
    return {partition for offsets in committed.values() for partition in offsets}


def _lags(
    committed: Mapping[str, Mapping[TopicPartition, int]], ends: Mapping[TopicPartition, int]
) -> dict[str, dict[TopicPartition, int]]:
    return {
        group: {each: max(ends[each] - offset, 0) for each, offset in offsets.items() if each in ends}
        for group, offsets in committed.items()
    }


class LagBook:
    def __init__(self, cluster: "ConsoleCluster") -> None:
        self._cluster = cluster
        self._group_count = 0
        self._commits = Commits()
        self._totals: Totals | None = None
        #: When to read the ends again that are not on the screen.
        self._far_again_s = 0.0
        #: The listing of which every group's offsets are known.
        self._complete: Listing | None = None
        self.growth: Growth[tuple[str, TopicPartition]] = Growth(COMMIT_RATE_S)
        self.history: dict[str, History] = {}
        #: When a user last looked at each group.
        self._looked_s: Recent[str, float] = Recent(SAMPLED_MAX)
        self._sampler: asyncio.Task[None] | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._swept_until_s = 0.0

    # -- list of groups -------------------------------------------------------------------------------------------------

    async def groups(self) -> Listing:
        """Return the groups with their coordinators. Groups of a broker that does not answer are missing."""

        async def ask() -> Listing:
            async def one(broker_id: int) -> ListGroupsResponse:
                response = await self._cluster.client.ask(broker_id, ListGroupsRequest(), ListGroupsResponse)
                check(response.error_code)
                return response

            found: list[Listed] = []
            answers = await self._cluster.on_brokers(one)
            for broker_id, answer in answers.items():
                if isinstance(answer, ClientError):
                    if len(answers) == 1 or not answer.retriable:
                        raise answer
                    continue
                for group in answer.groups:
                    kind, state = group.group_type.capitalize() or CLASSIC, intern(group.group_state)
                    found.append(Listed(group.group_id, state, intern(kind), intern(group.protocol_type), broker_id))
            listing = Listing(found)
            self._group_count = len(listing)
            self._commits.keep(lambda group: group in listing or group in self._looked_s)
            return listing

        max_age_s = max(1.5, self._cluster.paced_s(self._group_count, 30.0))
        return await self._cluster.kept("groups", max_age_s, ask, paced_s=5.0)

    # -- committed offsets ----------------------------------------------------------------------------------------------

    async def committed(
        self, groups: Iterable[str], max_age_s: float, *, idle_age_s: float = 0.0
    ) -> dict[str, Mapping[TopicPartition, int]]:
        """Return offsets by group. A group whose coordinator does not answer is left out. With `idle_age_s`, the offsets of
        idle groups may be older."""
        wanted = list(groups)
        listing = await self.groups()
        now_s = asyncio.get_running_loop().time()

        def is_old(group: str) -> bool:
            known = self._commits.get(group)
            if known is None or now_s - known.at_s > max(max_age_s, idle_age_s):
                return True
            listed = listing.get(group)
            is_idle = listed is not None and listed.state == _EMPTY and now_s - known.moved_s > _IDLE_AFTER_S
            return not is_idle and now_s - known.at_s > max_age_s

        old = [group for group in wanted if is_old(group)]
        if old:
            await self._ask(old)
        return {
            group: known.as_dict()
            for group in wanted
            if (known := self._commits.get(group)) is not None and not is_old(group)
        }

    async def _ask(self, groups: Sequence[str]) -> None:
        listing = await self.groups()
        by_broker: dict[int, list[str]] = {}
        for group in groups:
            listed = listing.get(group)
            if listed is not None and listed.type == SHARE:
                self._note(group, {})  # it has start offsets instead, see `share_groups`
                continue
            by_broker.setdefault(listed.coordinator if listed is not None else -1, []).append(group)
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
        self._commits.note(group, offsets, now_s)
        if group in self._looked_s:
            for partition, offset in offsets.items():
                self.growth.note((group, partition), offset, now_s)

    async def lags(self, groups: Iterable[str], max_age_s: float) -> dict[str, dict[TopicPartition, int]]:
        """Return lags by group and partition. Partitions without a leader are left out."""
        committed = await self.committed(groups, max_age_s)
        return _lags(committed, await self._cluster.offsets.ends(_partitions(committed), max_age_s))

    async def lags_in_sight(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, int]]:
        """Return lags for the rows of a list: those of idle groups and of unchanged partitions may be older."""
        committed = await self.committed(groups, 1.5, idle_age_s=_IDLE_AGE_S)
        return _lags(committed, await self._cluster.offsets.ends_in_sight(_partitions(committed)))

    # -- all groups, a few at a time ------------------------------------------------------------------------------------

    async def sweep(self) -> tuple[int, int]:
        """Start reading all groups, and keep them current. Return how many are known, and how many there are."""
        listing = await self.groups()
        self.sweep_behind()
        new = self._new_groups(listing)
        if 0 < len(new) <= NEW_SLICE:
            await self._ask(new)  # few enough to wait for
            new = self._new_groups(listing)
        return len(listing) - len(new), len(listing)

    def sweep_behind(self) -> None:
        """Like `sweep`, but without waiting."""
        self._swept_until_s = asyncio.get_running_loop().time() + _SWEEP_S
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = self._cluster.tasks.start(self._sweep_on(), "sweep groups")

    def _new_groups(self, listing: Listing) -> list[str]:
        if listing is self._complete:
            return []
        new = [group for group in listing.by_id if group not in self._commits]
        if not new:
            self._complete = listing
        return new

    async def _sweep_on(self) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < self._swept_until_s:
            try:
                listing = await self.groups()
                new = self._new_groups(listing)
                for at in range(0, len(new), NEW_SLICE):
                    await self._ask(new[at : at + NEW_SLICE])
                    await asyncio.sleep(_NEW_PAUSE_S)
                old = list(itertools.islice(self._commits.oldest(), _SWEPT))
                if old:
                    await self._ask(old)
            except Exception as error:
                # Logs bugs; a user without the right to see groups sees topics without lags.
                refusal_for(error, "sweep groups")
            await asyncio.sleep(_SWEEP_PAUSE_S)

    def totals(self) -> Totals:
        """Return sums over the known groups, with the last known ends. Sends no request."""
        now_s = asyncio.get_running_loop().time()
        if self._totals is None or now_s - self._totals.at_s > _TOTALS_AGE_S:
            growth = self._cluster.offsets.growth
            self._totals = self._commits.totals(lambda each: growth.last(each, UNKNOWN), now_s)
        return self._totals

    async def far_totals(self) -> Totals:
        """Like `totals`, but with ends of about the last minute."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._far_again_s:
            self._far_again_s = now_s + _FAR_EVERY_S
            await self._cluster.offsets.ends(self._commits.partitions(), _FAR_AGE_S)
        return self.totals()

    def groups_of_topic(self, topic: str) -> dict[str, dict[TopicPartition, int]]:
        """Return the committed offsets of the topic, for the known groups."""
        return self._commits.of_topic(topic)

    # -- the last hour --------------------------------------------------------------------------------------------------

    def look(self, group: str | None = None) -> None:
        """Note that a user looks at the groups, or at one: its lag is sampled for an hour from now on."""
        now_s = asyncio.get_running_loop().time()
        if group is not None:
            for forgotten, _ in self._looked_s.put(group, now_s):
                self.history.pop(forgotten, None)
        if self._sampler is None or self._sampler.done():
            self._sampler = self._cluster.tasks.start(self._sample_for_an_hour(now_s), "sample lags")
        self._last_look_s = now_s

    def _forget(self, group: str) -> None:
        self._looked_s.pop(group)
        self.history.pop(group, None)

    async def _sample_for_an_hour(self, began_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._last_look_s = began_s
        while loop.time() - self._last_look_s < _HOUR_S:
            try:
                await self.sample()
            except Exception as error:
                refusal_for(error, "sample lags")  # logs bugs; other errors appear in the user's own requests
            await asyncio.sleep(SAMPLE_S)

    async def sample(self) -> None:
        listed = await self.groups()
        now_s = asyncio.get_running_loop().time()
        for group in [group for group, at_s in self._looked_s.items() if now_s - at_s > _HOUR_S]:
            self._forget(group)
        wanted = dict.fromkeys(self._looked_s)
        if len(listed) <= SAMPLED_MAX:
            wanted |= dict.fromkeys(listed.by_id)
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
        """Drop committed offsets after a change. The history of the last hour stays."""
        self._commits.clear()
        self._totals = self._complete = None
        self._far_again_s = 0.0

    def stop(self) -> None:
        for task in (self._sampler, self._sweeper):
            if task is not None:
                task.cancel()
