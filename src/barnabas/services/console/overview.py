"""The cluster at a glance: brokers, leaders and replicas, what is wrong, how much comes in, how fast brokers answer."""

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.base.clock import SystemClock
from barnabas.base.ids import TopicPartition
from barnabas.client.errors import ClientError
from barnabas.client.image import ClusterImage
from barnabas.services.console.cluster import ConsoleCluster
from barnabas.services.console.sizes import replica_sizes
from barnabas.services.console.web import Call, Endpoint
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse

#: Points of the charts: ten minutes of two seconds each, while somebody looks.
_POINTS: Final = 300
_EVERY_S: Final = 2.0


@dataclass(slots=True)
class Charts:
    at_s: deque[float] = field(default_factory=lambda: deque(maxlen=_POINTS))
    #: Records a second; None where they were not measured.
    rate: deque[float | None] = field(default_factory=lambda: deque(maxlen=_POINTS))
    #: By broker, in milliseconds.
    answers: dict[int, deque[float | None]] = field(default_factory=dict)

    def add(self, at_s: float, rate: float | None, answers: Mapping[int, float | None]) -> None:
        self.at_s.append(at_s)
        self.rate.append(rate)
        for broker_id in {*self.answers, *answers}:
            series = self.answers.setdefault(broker_id, deque([None] * (len(self.at_s) - 1), maxlen=_POINTS))
            series.append(answers.get(broker_id))


async def overview(call: Call) -> dict[str, Any]:
    cluster = call.cluster
    image = await cluster.image()
    sizes = await cluster.kept("broker sizes", 30.0, lambda: _broker_sizes(cluster), paced_s=120.0)
    rate = await cluster.kept("throughput", _EVERY_S * 0.9, lambda: _throughput(cluster, image), paced_s=30.0)
    answers = await cluster.kept("answer times", _EVERY_S * 0.9, lambda: _answer_times(cluster))
    charts = cluster.remembered("charts", Charts)
    now_s = round(SystemClock().now_ms() / 1000, 1)
    if not charts.at_s or now_s - charts.at_s[-1] >= _EVERY_S * 0.8:
        charts.add(now_s, rate, answers)
    return {
        "clusterId": image.cluster_id,
        "controller": image.controller_id,
        "topics": len(image.topics),
        **_health(image),
        "rate": rate,
        "size": sum(sizes.values()) if sizes else None,
        "brokers": _brokers(image, sizes, answers),
        "charts": {
            "at": list(charts.at_s),
            "rate": list(charts.rate),
            "answerMs": {str(broker_id): list(series) for broker_id, series in sorted(charts.answers.items())},
        },
    }


def _health(image: ClusterImage) -> dict[str, Any]:
    behind: list[str] = []
    offline: list[str] = []
    partitions = 0
    for name, topic in image.topics.items():
        partitions += len(topic.partitions)
        for info in topic.partitions:
            if info.leader not in image.brokers:
                offline.append(f"{name}-{info.index}")
            elif len(info.isr) < len(info.replicas):
                behind.append(f"{name}-{info.index}")
    return {
        "partitions": partitions,
        "underReplicated": len(behind),
        "underReplicatedSome": behind[:20],
        "offline": len(offline),
        "offlineSome": offline[:20],
    }


def _brokers(
    image: ClusterImage, sizes: Mapping[int, int], answers: Mapping[int, float | None]
) -> list[dict[str, Any]]:
    leaders: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    out_of_sync: Counter[int] = Counter()
    for topic in image.topics.values():
        for info in topic.partitions:
            leaders[info.leader] += 1
            replicas.update(info.replicas)
            out_of_sync.update(set(info.replicas) - set(info.isr))
    known = image.brokers
    return [
        {
            "id": broker_id,
            "host": known[broker_id].host if broker_id in known else None,
            "port": known[broker_id].port if broker_id in known else None,
            "rack": known[broker_id].rack if broker_id in known else None,
            "isAlive": broker_id in known,
            "isController": broker_id == image.controller_id,
            "leaders": leaders[broker_id],
            "replicas": replicas[broker_id],
            "outOfSync": out_of_sync[broker_id],
            "size": sizes.get(broker_id),
            "answerMs": answers.get(broker_id),
        }
        for broker_id in sorted({*known, *replicas})
    ]


async def _broker_sizes(cluster: ConsoleCluster) -> dict[int, int]:
    totals: dict[int, int] = {}
    for (broker_id, _), size in (await replica_sizes(cluster, None)).items():
        totals[broker_id] = totals.get(broker_id, 0) + size
    return totals


async def _throughput(cluster: ConsoleCluster, image: ClusterImage) -> float | None:
    """Records a second that come in, over all partitions."""
    partitions = [TopicPartition(name, info.index) for name, topic in image.topics.items() for info in topic.partitions]
    await cluster.offsets.ends(partitions, 1.0)
    return cluster.offsets.rate(partitions)


async def _answer_times(cluster: ConsoleCluster) -> dict[int, float | None]:
    """Of a small request to each broker, with the way there and back."""

    async def one(broker_id: int) -> float:
        await cluster.client.link(broker_id)
        began_s = time.perf_counter()
        await cluster.client.ask(broker_id, MetadataRequest(topics=[]), MetadataResponse, timeout_ms=2_000)
        return round((time.perf_counter() - began_s) * 1000, 2)

    answers = await cluster.on_brokers(one)
    return {broker_id: None if isinstance(each, ClientError) else each for broker_id, each in answers.items()}


async def doctor(call: Call) -> dict[str, Any]:
    """What `barnabas doctor` has to say. It takes seconds, so it is kept for minutes."""
    cluster = call.cluster

    async def ask() -> dict[str, Any]:
        from barnabas.services.doctor.checks import examine
        from barnabas.services.doctor.finding import in_order
        from barnabas.services.doctor.look import Looker
        from barnabas.services.doctor.view import Limits

        view = await Looker(cluster.client, await cluster.image(), Limits()).look()
        return {
            "at": SystemClock().now_ms(),
            "findings": [finding.as_json() for finding in in_order(examine(view))],
        }

    if call.flag("again"):
        cluster.outdated("doctor")
    return await cluster.kept("doctor", 120.0, ask, paced_s=600.0)


ENDPOINTS = [
    Endpoint(
        method="GET",
        path="/overview",
        handler=overview,
        summary="Brokers, controller, health, throughput, answer times, with the last minutes for charts.",
        live_s=_EVERY_S,
    ),
    Endpoint(
        method="GET",
        path="/doctor",
        handler=doctor,
        summary="What barnabas doctor finds. again=1 looks anew.",
        query={"again": {"type": "boolean"}},
    ),
]
