"""The cluster at a glance: brokers, leaders and replicas, problems, throughput, and answer times of brokers."""

import asyncio
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.base.clock import SystemClock
from barnabas.base.ids import TopicPartition
from barnabas.base.words import ConfigResourceType
from barnabas.client.admin.configs import Resource, describe_configs
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.client.image import ClusterImage, PartitionInfo
from barnabas.services.console.cluster import ConsoleCluster
from barnabas.services.console.sizes import replica_sizes
from barnabas.services.console.web import Call, Endpoint
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse

_log = logging.getLogger(__name__)

#: Points of the charts: ten minutes of two seconds each, while a user watches.
_POINTS: Final = 300
_EVERY_S: Final = 2.0
#: Problems of partitions appear within five seconds: this age, the time of a request, and `_EVERY_S`.
_IMAGE_AGE_S: Final = 2.0
MIN_ISR: Final = "min.insync.replicas"
_MIN_ISR_AGE_S: Final = 10.0
#: Topics in one request for min.insync.replicas: after the loss of a broker all topics may be affected.
_TOPICS_AT_ONCE: Final = 500
#: Limit of partitions to name.
_NAMED_MAX: Final = 20
#: Intervals of the doctor's checks while the cluster changes, and (below) while it does not.
_DOCTOR_CHANGED_S: Final = 5.0
_DOCTOR_UNCHANGED_S: Final = 120.0


@dataclass(slots=True)
class Charts:
    at_s: deque[float] = field(default_factory=lambda: deque(maxlen=_POINTS))
    #: Records per second; None if not measured.
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
    image = await cluster.image(age_s_max=_IMAGE_AGE_S)
    health = await _health(cluster, image)
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
        **health.as_json(),
        "rate": rate,
        "size": sum(sizes.values()) if sizes else None,
        "brokers": _brokers(image, sizes, answers),
        "charts": {
            "at": list(charts.at_s),
            "rate": list(charts.rate),
            "answerMs": {str(broker_id): list(series) for broker_id, series in sorted(charts.answers.items())},
        },
    }


@dataclass(frozen=True, slots=True)
class Health:
    """Partitions with problems."""

    partitions: int
    #: Partitions without a leader: they can be neither read nor written.
    offline: tuple[str, ...]
    #: Partitions with fewer in-sync replicas than replicas.
    under_replicated: tuple[str, ...]
    #: Partitions below min.insync.replicas: they refuse writes with acks=all. None: unknown.
    refusing_writes: tuple[str, ...] | None

    def as_json(self) -> dict[str, Any]:
        refusing = self.refusing_writes
        return {
            "partitions": self.partitions,
            "underReplicated": len(self.under_replicated),
            "underReplicatedSome": list(self.under_replicated[:_NAMED_MAX]),
            "underMinIsr": None if refusing is None else len(refusing),
            "underMinIsrSome": list((refusing or ())[:_NAMED_MAX]),
            "offline": len(self.offline),
            "offlineSome": list(self.offline[:_NAMED_MAX]),
        }


async def _health(cluster: ConsoleCluster, image: ClusterImage) -> Health:
    offline: list[str] = []
    behind: dict[str, list[PartitionInfo]] = {}
    for name, topic in image.topics.items():
        for info in topic.partitions:
            if info.leader not in image.brokers:
                offline.append(f"{name}-{info.index}")
            elif len(info.isr) < len(info.replicas):
                behind.setdefault(name, []).append(info)
    min_isr = await _min_isr(cluster, frozenset(behind))
    refusing = None
    if min_isr is not None:
        refusing = tuple(
            f"{name}-{info.index}"
            for name, infos in behind.items()
            for info in infos
            if len(info.isr) < min(min_isr.get(name, 1), len(info.replicas))
        )
    return Health(
        partitions=sum(len(topic.partitions) for topic in image.topics.values()),
        offline=tuple(offline),
        under_replicated=tuple(f"{name}-{info.index}" for name, infos in behind.items() for info in infos),
        refusing_writes=refusing,
    )


async def _min_isr(cluster: ConsoleCluster, topics: frozenset[str]) -> dict[str, int] | None:
    """Return min.insync.replicas of topics; None if this user may not describe the topics."""
    if not topics:
        return {}

    async def ask() -> dict[str, int] | None:
        found: dict[str, int] = {}
        refused: dict[Resource, BrokerRefused] = {}
        names = sorted(topics)
        try:
            for start in range(0, len(names), _TOPICS_AT_ONCE):
                resources = [(ConfigResourceType.TOPIC, name) for name in names[start : start + _TOPICS_AT_ONCE]]
                answer = await describe_configs(cluster.client, resources, names=[MIN_ISR], refused=refused)
                for (_, name), entries in answer.items():
                    found[name] = next((int(entry.value) for entry in entries if entry.value), 1)
        except ClientError as error:
            _log.info("[console] cannot read min.insync.replicas: %s", error)
            return None
        return None if refused and not found else found

    return await cluster.kept(("min isr", topics), _MIN_ISR_AGE_S, ask, paced_s=60.0)


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
    """Return the records written per second, over all partitions."""
    partitions = [TopicPartition(name, info.index) for name, topic in image.topics.items() for info in topic.partitions]
    await cluster.offsets.ends(partitions, 1.0)
    return cluster.offsets.rate(partitions)


async def _answer_times(cluster: ConsoleCluster) -> dict[int, float | None]:
    """Return the time of a small request to each broker, including the network."""

    async def one(broker_id: int) -> float:
        await cluster.client.link(broker_id)
        began_s = time.perf_counter()
        await cluster.client.ask(broker_id, MetadataRequest(topics=[]), MetadataResponse, timeout_ms=2_000)
        return round((time.perf_counter() - began_s) * 1000, 2)

    answers = await cluster.on_brokers(one)
    return {broker_id: None if isinstance(each, ClientError) else each for broker_id, each in answers.items()}


@dataclass(slots=True)
class LastLook:
    """The state of the cluster in the doctor's last answer, and when that check began: a change during a check triggers
    another."""

    state: object = None
    at_s: float = -math.inf


async def doctor(call: Call) -> dict[str, Any]:
    """Return the findings of `barnabas doctor`. A check takes seconds, so its answer is cached until brokers or partitions
    change, and for minutes if they do not."""
    cluster = call.cluster
    image = await cluster.image(age_s_max=_IMAGE_AGE_S)
    health = await _health(cluster, image)
    state = (frozenset(image.brokers), image.controller_id, health)
    last = cluster.remembered("doctor's last look", LastLook)
    now_s = asyncio.get_running_loop().time()
    if call.flag("again") or (state != last.state and now_s - last.at_s >= _DOCTOR_CHANGED_S):
        cluster.outdated("doctor")

    async def ask() -> dict[str, Any]:
        from barnabas.services.doctor.checks import examine
        from barnabas.services.doctor.finding import in_order
        from barnabas.services.doctor.look import Looker
        from barnabas.services.doctor.view import Limits

        began_s = asyncio.get_running_loop().time()
        view = await Looker(cluster.client, image, Limits()).look()
        last.state, last.at_s = state, began_s
        return {
            "at": SystemClock().now_ms(),
            "findings": [finding.as_json() for finding in in_order(examine(view))],
        }

    return await cluster.kept("doctor", _DOCTOR_UNCHANGED_S, ask, paced_s=600.0)


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
        summary="What barnabas doctor finds. It looks again when brokers or partitions change, and with again=1.",
        query={"again": {"type": "boolean"}},
        live_s=_EVERY_S,
    ),
]
