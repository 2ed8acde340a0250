"""Topics: the list, and a single topic."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from barnabas.base.ids import TopicPartition
from barnabas.client.image import TopicInfo
from barnabas.services.console.cluster import ConsoleCluster
from barnabas.services.console.sizes import replica_sizes, topic_sizes
from barnabas.services.console.web import FLAG, NUMBER, TEXT, Call, Endpoint

SORTS: Final = ("name", "partitions", "replicas", "size", "messages", "rate", "lag")
#: Limit of rows in one answer: more than any screen shows.
WINDOW_MAX: Final = 500


def partitions_of(topic: TopicInfo) -> list[TopicPartition]:
    return [TopicPartition(topic.name, info.index) for info in topic.partitions]


def plain_row(topic: TopicInfo) -> dict[str, Any]:
    """Return the columns that the metadata contains."""
    return {
        "name": topic.name,
        "internal": topic.internal,
        "partitions": len(topic.partitions),
        "replicas": max((len(info.replicas) for info in topic.partitions), default=0),
        "underReplicated": sum(len(info.isr) < len(info.replicas) for info in topic.partitions),
        "offline": sum(info.leader < 0 for info in topic.partitions),
    }


async def topic_list(call: Call) -> dict[str, Any]:
    image = await call.cluster.image()
    search = call.text("search").lower()
    sort, is_down = call.choice("sort", SORTS), call.flag("descending")
    found = [
        topic
        for name, topic in image.topics.items()
        if search in name.lower() and (call.flag("internal") or not is_internal(topic))
    ]
    start, count = call.number("start", 0), call.number("count", 100, high=WINDOW_MAX)
    sizes = await topic_sizes(call.cluster)
    key = await _sort_key(call.cluster, sort, found, sizes)
    window = sorted(found, key=key, reverse=is_down)[start : start + count]
    shown = await _figures(call.cluster, window, sizes=sizes, ends=call.cluster.offsets.ends_in_sight)
    call.cluster.lag.sweep_behind()
    lags = call.cluster.lag.totals().by_topic  # of all groups known so far
    return {
        "total": len(found),
        "start": start,
        "topics": [plain_row(topic) | shown[topic.name] | {"lag": lags.get(topic.name)} for topic in window],
    }


async def _sort_key(
    cluster: ConsoleCluster, sort: str, topics: list[TopicInfo], sizes: Mapping[str, int]
) -> Callable[[TopicInfo], Any]:
    """Return a sort key. Changing values are needed for all topics: they may be a minute old, but the visible rows are
    fresh."""
    if sort == "name":
        return lambda topic: topic.name
    if sort == "size":
        return lambda topic: (sizes.get(topic.name, 0), topic.name)
    if sort == "lag":
        lags = (await cluster.lag.far_totals()).by_topic
        return lambda topic: (lags.get(topic.name, -1), topic.name)
    if sort in ("partitions", "replicas"):
        return lambda topic: (plain_row(topic)[sort], topic.name)
    figures = await _figures(cluster, topics, sizes=sizes, ends=lambda all_of: cluster.offsets.ends(all_of, 60.0))
    return lambda topic: (figures[topic.name][sort] or 0, topic.name)


def is_internal(topic: TopicInfo) -> bool:
    return topic.internal or topic.name.startswith("__")


async def _figures(
    cluster: ConsoleCluster,
    topics: Iterable[TopicInfo],
    *,
    sizes: Mapping[str, int],
    ends: Callable[[list[TopicPartition]], Awaitable[dict[TopicPartition, int]]],
) -> dict[str, dict[str, Any]]:
    by_name = {topic.name: partitions_of(topic) for topic in topics}
    everything = [partition for partitions in by_name.values() for partition in partitions]
    last, first = await asyncio.gather(ends(everything), cluster.offsets.starts(everything, 60.0))
    return {
        name: {
            "messages": sum(last[each] - first[each] for each in partitions if each in last and each in first),
            "rate": cluster.offsets.rate(partitions),
            "size": sizes.get(name),
        }
        for name, partitions in by_name.items()
    }


async def topic_detail(call: Call) -> dict[str, Any]:
    cluster = call.cluster
    topic = await cluster.topic(call.path["topic"])
    partitions = partitions_of(topic)

    async def ask_sizes() -> Mapping[tuple[int, TopicPartition], int]:
        return await replica_sizes(cluster, partitions)

    ends = await cluster.offsets.ends(partitions, 0.9)
    starts = await cluster.offsets.starts(partitions, 5.0)
    sizes = await cluster.kept(("replicas", topic.name, len(partitions)), 5.0, ask_sizes, paced_s=30.0)
    rows = [
        {
            "partition": info.index,
            "leader": info.leader,
            "leaderEpoch": info.leader_epoch,
            "replicas": info.replicas,
            "isr": info.isr,
            "offline": info.offline,
            "start": starts.get(each),
            "end": ends.get(each),
            "rate": cluster.offsets.rate([each]),
            "size": sizes.get((info.leader, each)),
        }
        for info, each in zip(topic.partitions, partitions, strict=True)
    ]
    return plain_row(topic) | {
        "id": topic.topic_id.hex(),
        "messages": sum(ends[each] - starts[each] for each in partitions if each in ends and each in starts),
        "rate": cluster.offsets.rate(partitions),
        "size": sum(sizes.values()),
        "partitionList": rows,
    }


ENDPOINTS = [
    Endpoint(
        method="GET",
        path="/topics",
        handler=topic_list,
        summary="A window of the topics, with sizes, records and rates.",
        query={
            "search": TEXT,
            "sort": {"enum": list(SORTS)},
            "descending": FLAG,
            "internal": FLAG,
            "start": NUMBER,
            "count": NUMBER,
        },
        live_s=2.0,
    ),
    Endpoint(
        method="GET",
        path="/topics/{topic}",
        handler=topic_detail,
        summary="One topic: its partitions with offsets, leaders and replicas.",
        live_s=1.0,
    ),
]
