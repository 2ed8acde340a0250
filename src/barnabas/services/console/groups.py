"""Groups: the list, and a single group with its lag and the causes of its growth."""

import asyncio
import math
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.base.ids import TopicPartition
from barnabas.client.admin import groups as admin
from barnabas.client.admin import streams_groups
from barnabas.client.admin.groups import GroupDescription
from barnabas.client.admin.share_groups import SHARE, member_counts
from barnabas.client.admin.streams_groups import STREAMS
from barnabas.client.admin.transactions import describe_producers
from barnabas.client.errors import ClientError
from barnabas.services.console import share_groups
from barnabas.services.console.causes import REBALANCING, GroupSeen, PartitionSeen, causes
from barnabas.services.console.cluster import ConsoleCluster
from barnabas.services.console.errors import not_found
from barnabas.services.console.lag import Listed
from barnabas.services.console.web import FLAG, NUMBER, TEXT, Call, Endpoint

SORTS: Final = ("group", "state", "type", "lag")
WINDOW_MAX: Final = 500
#: Time over which rebalances are counted.
_REBALANCES_S: Final = 300.0
#: Interval and maximum age of the answers on a group's page, so that the shown lag is less than a second old.
_EVERY_S: Final = 0.7
_AGE_S: Final = 0.2


async def group_list(call: Call) -> dict[str, Any]:
    book = call.cluster.lag
    book.look()
    listing = await book.groups()
    search, state = call.text("search").lower(), call.text("state").lower()
    sort, is_down = call.choice("sort", SORTS), call.flag("descending")
    start, count = call.number("start", 0), call.number("count", 100, high=WINDOW_MAX)
    known = total = len(listing)
    found = listing.ordered("group" if sort == "lag" else sort)
    if search or state:
        found = [
            group for group in found if search in group.group.lower() and (not state or group.state.lower() == state)
        ]
    if sort == "lag":
        known, total = await book.sweep()
        sums = (await book.far_totals()).by_group
        found = sorted(found, key=lambda group: sums.get(group.group, -1))
    if is_down:
        found = found[::-1]
    window = found[start : start + count]
    lags = await book.lags_in_sight([group.group for group in window])
    members = await _member_counts(call.cluster, window)
    shared = await share_groups.offsets_in_sight(call.cluster, window)
    return {
        "total": len(found),
        "start": start,
        "states": listing.states,
        "lagKnown": known,
        "lagOf": total,
        "groups": [
            {
                "group": group.group,
                "state": group.state,
                "type": group.type,
                "protocol": group.protocol,
                "coordinator": group.coordinator,
                "members": members.get(group.group),
                "lag": _lag_of(group, lags, shared),
                "topics": len({tp.topic for tp in (*lags.get(group.group, ()), *shared.get(group.group, ()))}),
            }
            for group in window
        ],
    }


def _lag_of(
    group: Listed, lags: Mapping[str, Mapping[TopicPartition, int]], shared: share_groups.Offsets
) -> int | None:
    if group.type == SHARE:
        return share_groups.known_lag(shared[group.group]) if group.group in shared else None
    return sum(lags[group.group].values()) if group.group in lags else None


def _count_members(
    cluster: ConsoleCluster, broker: int, kind: str, groups: Sequence[str]
) -> Coroutine[Any, Any, dict[str, int]]:
    if kind == SHARE:
        return member_counts(cluster.client, broker, groups)
    if kind == STREAMS:
        return streams_groups.member_counts(cluster.client, broker, groups)
    return admin.member_counts(cluster.client, broker, kind, groups)


async def _member_counts(cluster: ConsoleCluster, window: Sequence[Listed]) -> dict[str, int]:
    """Describe the groups that are not empty, with one request per coordinator; the result is cached."""
    empty = {group.group: 0 for group in window if group.state in ("Empty", "Dead")}
    active = [
        group
        for group in window
        if group.group not in empty and group.type in (admin.CLASSIC, admin.CONSUMER, SHARE, STREAMS)
    ]
    if not active:
        return empty

    async def ask() -> dict[str, int]:
        together: dict[tuple[int, str], list[str]] = {}
        for group in active:
            together.setdefault((group.coordinator, group.type), []).append(group.group)
        answers = await cluster.client.io.together(
            [_count_members(cluster, broker, kind, some) for (broker, kind), some in together.items()]
        )
        return {
            group: count for answer in answers if not isinstance(answer, ClientError) for group, count in answer.items()
        }

    key = ("members", tuple(group.group for group in active))
    return empty | await cluster.kept(key, 5.0, ask, paced_s=30.0)


# -- one group --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Watched:
    """Rebalances of a group that were observed while a page showed it."""

    state: str = ""
    members: frozenset[str] = frozenset()
    rebalanced_s: deque[float] = field(default_factory=lambda: deque(maxlen=50))

    def see(self, described: GroupDescription, now_s: float) -> int:
        """Return the number of rebalances within the last minutes: one began, or the members have changed."""
        members = frozenset(member.member_id for member in described.members)
        began = described.state in REBALANCING and self.state not in REBALANCING
        changed = bool(self.members) and members != self.members and described.state not in REBALANCING
        if self.state and (began or (changed and self.state not in REBALANCING)):
            self.rebalanced_s.append(now_s)
        self.state, self.members = described.state, members
        while self.rebalanced_s and now_s - self.rebalanced_s[0] > _REBALANCES_S:
            self.rebalanced_s.popleft()
        return len(self.rebalanced_s)


async def group_detail(call: Call) -> dict[str, Any]:
    cluster, group = call.cluster, call.path["group"]
    listed = (await cluster.lag.groups()).get(group)
    if listed is not None and listed.type == SHARE:
        return await share_groups.share_group_detail(cluster, group)
    is_streams = listed is not None and listed.type == STREAMS
    describe = streams_groups.describe_as_group if is_streams else admin.describe_group
    cluster.lag.look(group)
    described, known = await asyncio.gather(
        cluster.kept(("group", group), 0.9, lambda: describe(cluster.client, group), paced_s=3.0),
        cluster.lag.committed([group], _AGE_S),
    )
    committed = known.get(group, {})
    if described.missing and not committed:
        raise not_found(f"there is no group {group}")
    seen = await _seen(cluster, group, described, committed)
    history = cluster.lag.history.get(group)
    owners = {each: member for member in described.members for each in member.assignment}
    return {
        "group": group,
        "state": described.state,
        "type": described.type,
        "protocol": described.protocol_type,
        "assignor": described.assignor,
        "coordinator": described.coordinator_id,
        "lag": sum(each.lag for each in seen.partitions),
        "lagLeavesOut": sum(each.committed is None and (each.end or 0) > (each.start or 0) for each in seen.partitions),
        "consumed": _total(each.consumed for each in seen.partitions),
        "produced": _total(each.produced for each in seen.partitions),
        "members": [
            {
                "id": member.member_id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.host.removeprefix("/"),
                "partitions": [{"topic": each.topic, "partition": each.partition} for each in member.assignment],
            }
            for member in described.members
        ],
        "partitions": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "committed": each.committed,
                "start": each.start,
                "end": each.end,
                "stableEnd": each.stable_end,
                "lag": each.lag if each.committed is not None and each.end is not None else None,
                "produced": _rounded(each.produced),
                "consumed": _rounded(each.consumed),
                "client": owners[each.partition].client_id if each.partition in owners else None,
                "member": owners[each.partition].member_id if each.partition in owners else None,
            }
            for each in seen.partitions
        ],
        "causes": [
            {
                "kind": cause.kind,
                "sentence": cause.sentence,
                "partitions": [{"topic": each.topic, "partition": each.partition} for each in cause.partitions],
            }
            for cause in causes(seen)
        ],
        "history": {"at": list(history.at_s), "lag": list(history.total)} if history else {"at": [], "lag": []},
    }


async def _seen(
    cluster: ConsoleCluster, group: str, described: GroupDescription, committed: Mapping[TopicPartition, int]
) -> GroupSeen:
    owners = {each: member for member in described.members for each in member.assignment}
    partitions = sorted({*committed, *owners})
    ends = await cluster.offsets.ends(partitions, _AGE_S)
    starts = await cluster.offsets.starts(partitions, 10.0)
    behind = [each for each in partitions if each in ends and committed.get(each, ends[each]) < ends[each]]

    async def ask_held() -> dict[TopicPartition, int]:
        """Return the last stable offsets below the ends that were read before: only an open transaction causes these."""
        stable = await cluster.offsets.stable_ends(behind)
        return {each: offset for each, offset in stable.items() if offset < ends[each]}

    held = await cluster.kept(("held", group, tuple(behind)), 2.0, ask_held) if behind else {}
    now_s = asyncio.get_running_loop().time()
    waiting = set(behind)
    watched = cluster.remembered(("watched", group), Watched)
    growth, moved = cluster.lag.growth, cluster.offsets.growth
    rows = [
        PartitionSeen(
            partition=each,
            committed=committed.get(each),
            start=starts.get(each),
            end=ends.get(each),
            stable_end=held.get(each, ends[each]) if each in waiting else None,
            member=owners[each].client_id if each in owners else None,
            member_id=owners[each].member_id if each in owners else None,
            produced=moved.rate(each),
            consumed=growth.rate((group, each), over_s=10.0),
            still_s=growth.still_s((group, each)),
        )
        for each in partitions
    ]
    rebalances = watched.see(described, now_s)
    return GroupSeen(
        state=described.state,
        members=[member.member_id for member in described.members],
        partitions=rows,
        rebalances=rebalances,
        settled_s=now_s - watched.rebalanced_s[-1] if watched.rebalanced_s else math.inf,
        open_transactions=await _open_transactions(cluster, rows),
    )


async def _open_transactions(cluster: ConsoleCluster, rows: Sequence[PartitionSeen]) -> dict[TopicPartition, str]:
    """Describe the producer that holds readers back, for the first such partition."""
    held = next(
        (
            row
            for row in rows
            if row.stable_end is not None
            and row.end is not None
            and row.committed is not None
            and row.committed >= row.stable_end
            and row.stable_end < row.end
        ),
        None,
    )
    if held is None:
        return {}

    async def ask() -> str:
        try:
            producers = await describe_producers(cluster.client, held.partition)
        except ClientError as error:
            return f"its producer is unknown ({error})"
        open_ones = [each for each in producers if each.current_txn_start_offset >= 0]
        if not open_ones:
            return ""
        oldest = min(open_ones, key=lambda each: each.current_txn_start_offset)
        since = oldest.current_txn_start_offset
        return f"producer {oldest.producer_id}, epoch {oldest.producer_epoch}, open since offset {since}"

    return {held.partition: await cluster.kept(("producers", held.partition), 5.0, ask)}


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 2)


def _total(rates: Any) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return round(sum(known), 2) if known else None


async def partition_history(call: Call) -> dict[str, Any]:
    """Return the history of the partitions of one topic."""
    history = call.cluster.lag.history.get(call.path["group"])
    if history is None:
        return {"at": [], "partitions": {}}
    topic = call.text("topic")
    return {
        "at": list(history.at_s),
        "partitions": {
            str(each.partition): history.series(each) for each in sorted(history.partitions) if each.topic == topic
        },
    }


async def topic_groups(call: Call) -> dict[str, Any]:
    """Return the groups that have committed offsets of a topic, as far as groups are known."""
    cluster = call.cluster
    topic = (await cluster.topic(call.path["topic"])).name
    known, total = await cluster.lag.sweep()
    found = cluster.lag.groups_of_topic(topic)
    fresh = await cluster.lag.committed(list(found)[:WINDOW_MAX], 1.5)
    partitions = {each for offsets in found.values() for each in offsets}
    ends = await cluster.offsets.ends(partitions, 1.5)
    listing = await cluster.lag.groups()
    return {
        "known": known,
        "of": total,
        "groups": [
            {
                "group": group,
                "state": listed.state if (listed := listing.get(group)) is not None else "",
                "lag": sum(
                    max(ends[each] - offset, 0)
                    for each, offset in fresh.get(group, offsets).items()
                    if each.topic == topic and each in ends
                ),
                "partitions": len(offsets),
            }
            for group, offsets in sorted(found.items())
        ],
    }


ENDPOINTS = [
    Endpoint(
        method="GET",
        path="/groups",
        handler=group_list,
        summary="A window of the groups, with their lag. Sorted by lag, all are read a few at a time: lagKnown of lagOf.",
        query={
            "search": TEXT,
            "state": TEXT,
            "sort": {"enum": list(SORTS)},
            "descending": FLAG,
            "start": NUMBER,
            "count": NUMBER,
        },
        live_s=2.0,
    ),
    Endpoint(
        method="GET",
        path="/groups/{group}",
        handler=group_detail,
        summary="One group: members, assignment, lag by partition and of the last hour, why it grows.",
        live_s=_EVERY_S,
    ),
    Endpoint(
        method="GET",
        path="/groups/{group}/history",
        handler=partition_history,
        summary="The lag of each partition of a topic within the last hour.",
        query={"topic": TEXT},
        live_s=10.0,
    ),
    Endpoint(
        method="GET",
        path="/topics/{topic}/groups",
        handler=topic_groups,
        summary="The groups that read a topic, with their lag.",
        live_s=2.0,
    ),
]
