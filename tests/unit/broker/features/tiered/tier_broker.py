"""Real brokers in the test's own loop, with a store in memory whose failures the test controls."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.broker.compose import Broker
from barnabas.broker.features.tiered import layout
from barnabas.broker.features.tiered.feature import TieredPlugin
from barnabas.broker.features.tiered.manager import TierManager
from barnabas.broker.features.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.broker.features.tiered.segment_metadata import RemoteSegment
from barnabas.broker.server.platform import Platform
from barnabas.broker.storage.log import Log
from barnabas.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from barnabas.wire.records import BatchBuilder
from tests.memory_store import MemoryStore
from tests.unit.broker.compose.live_broker import ask, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import Ensemble

TP = TopicPartition("orders", 0)
#: A topic was created, but its leader does not know it yet.
NOT_YET = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)
SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "barnabas.remote.storage.url": "memory://",
    "remote.log.manager.task.interval.ms": "50",
    "remote.log.manager.task.retry.backoff.ms": "5",
    "remote.log.manager.task.retry.backoff.max.ms": "20",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "log.retention.check.interval.ms": "50",
    "log.initial.task.delay.ms": "20",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "log.segment.delete.delay.ms": "0",
}


@dataclass
class TieredBroker:
    broker: Broker
    store: MemoryStore
    produced: int = 0
    tasks: list[object] = field(default_factory=list)

    @property
    def manager(self) -> TierManager:
        return self.broker.plugin(TieredPlugin).manager

    @property
    def log(self) -> Log:
        return self.broker.replicas.hosted.require(TP).local_log

    @property
    def view(self) -> RemoteLogMetadataCache:
        view = self.manager.view(TP)
        assert view is not None
        return view

    @property
    def finished(self) -> list[RemoteSegment]:
        view = self.manager.view(TP)
        return [] if view is None else [each for each in view.all() if each.is_finished]

    async def create(self, settings: Mapping[str, str] | None = None, *, replicas: int = 1) -> None:
        given = {"remote.storage.enable": "true", "segment.bytes": "1000", "retention.ms": "-1", **(settings or {})}
        topic = CreatableTopic(
            name=TP.topic,
            num_partitions=1,
            replication_factor=replicas,
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in given.items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        answer = await ask(self.broker, request, CreateTopicsResponse, version=4)
        assert answer.topics[0].error_code == ErrorCode.NONE, answer.topics[0].error_message

    async def delete(self) -> None:
        request = DeleteTopicsRequest(topic_names=[TP.topic], timeout_ms=30_000)
        answer = await ask(self.broker, request, DeleteTopicsResponse, version=3)
        assert answer.responses[0].error_code == ErrorCode.NONE

    async def produce(self, count: int, *, timestamp: int | None = None) -> None:
        """Write this many batches of one record of 300 bytes: three fill a segment of 1000."""
        for _ in range(count):
            builder = BatchBuilder()
            now = timestamp if timestamp is not None else self.broker._clock.now_ms()
            builder.append(b"%d" % self.produced, b"x" * 220, timestamp=now)
            data = PartitionProduceData(index=TP.partition, records=builder.build())
            request = ProduceRequest(
                acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=TP.topic, partition_data=[data])]
            )
            async with asyncio.timeout(50):
                while (code := await self._produce(request)) in NOT_YET:
                    await asyncio.sleep(0.005)
            assert code == ErrorCode.NONE, ErrorCode(code).name
            self.produced += 1

    async def _produce(self, request: ProduceRequest) -> int:
        answer = await ask(self.broker, request, ProduceResponse, version=9)
        return answer.responses[0].partition_responses[0].error_code

    def is_all_copied(self) -> bool:
        """Every rolled segment is in the tier."""
        return self.log.highest_copied_offset == self.log.active_segment.base_offset - 1 > 0


@asynccontextmanager
async def tiered_broker(
    ensemble: Ensemble, directory: Path, store: MemoryStore, settings: Mapping[str, str] | None = None
) -> AsyncIterator[TieredBroker]:
    platform = Platform(open_store=lambda url, settings: store)
    async with live_broker(ensemble, directory, {**SETTINGS, **(settings or {})}, platform=platform) as broker:
        yield TieredBroker(broker, store)


@asynccontextmanager
async def tiered_brokers(
    ensemble: Ensemble, directory: Path, store: MemoryStore, count: int, settings: Mapping[str, str] | None = None
) -> AsyncIterator[list[TieredBroker]]:
    async with AsyncExitStack() as stack:
        brokers = []
        for number in range(1, count + 1):
            own = {"broker.id": str(number), **(settings or {})}
            entered = tiered_broker(ensemble, directory / str(number), store, own)
            brokers.append(await stack.enter_async_context(entered))
        yield brokers


def is_whole(tier: TieredBroker) -> bool:
    """Every rolled segment is in the tier once, every object belongs to a known segment, and no copy is in progress."""
    view = tier.manager.view(TP)
    if view is None or not tier.is_all_copied():
        return False
    segments = view.all()
    ends = [each.end_offset + 1 for each in segments]
    return (
        all(each.is_finished for each in segments)
        and [each.start_offset for each in segments] == [tier.log.log_start_offset, *ends[:-1]]
        and set(tier.store.objects) == {key for each in segments for key in layout.keys(each)}
    )
