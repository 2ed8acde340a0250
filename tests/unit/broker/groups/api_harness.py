"""The group APIs of one broker without its sockets: requests and responses go through the real codecs, in every version."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar, cast

from barnabas.base.config.dynamic import DynamicConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.base.metrics.registry import Registry
from barnabas.base.topics import GROUP_METADATA_TOPIC
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.api.find_coordinator import FindCoordinatorApi, KeyType
from barnabas.broker.groups.streams_topics import InternalTopic
from barnabas.broker.parts import groups as group_parts
from barnabas.broker.security.principal import ANONYMOUS, Principal
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import ApiHandler, handlers_of
from barnabas.broker.zookeeper_client.coordinator_context import CoordinatorContext
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.wire import codec
from barnabas.wire.frame import parse_response_header
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from barnabas.wire.versions import api_of
from tests.manual_time import ManualClock, ManualTimers
from tests.memory_log import MemoryLog
from tests.support.memory_persister import MemoryPersister

R = TypeVar("R", bound=ApiMessage)


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"\0")[:16]


class Rules:
    """An authorizer that forbids the operations in `forbidden`."""

    def __init__(self) -> None:
        self.forbidden: set[tuple[AclOperation, AclResourceType, str]] = set()

    def allows(
        self, principal: Principal, host: str, operation: AclOperation, resource: AclResourceType, name: str
    ) -> bool:
        return (operation, resource, name) not in self.forbidden

    def allows_on_any(
        self, principal: Principal, host: str, operation: AclOperation, resource: AclResourceType
    ) -> bool:
        return True


class FakeChannel:
    principal = ANONYMOUS
    listener_name = "PLAINTEXT"
    peer_host = "127.0.0.1"

    def __init__(self) -> None:
        self.answer: asyncio.Future[Call] = asyncio.get_running_loop().create_future()

    def answered(self, call: Call) -> None:
        self.answer.set_result(call)

    def fail(self, why: str) -> None:
        raise AssertionError(why)


class FakeBroker:
    """Broker 1 with broker 2 beside it; `orders` has two partitions."""

    def __init__(self, **properties: str) -> None:
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.metadata = MetadataCache()
        self.rules = Rules()
        self.log = MemoryLog()
        self.created: list[tuple[str, int, int, Mapping[str, str]]] = []
        self.create_error = ErrorCode.NONE
        self.tasks: list[asyncio.Task[None]] = []
        settings = {
            "broker.id": "1",
            "zookeeper.connect": "localhost:2181",
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "4",
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
        unused = cast(Any, None)
        self.context = BrokerContext(
            broker_id=BrokerId(1),
            cluster_id="cluster",
            dynamic=DynamicConfig(settings),
            clock=self.clock,
            registry=Registry(),
            metadata=self.metadata,
            logs=unused,
            replicas=unused,
            fetch_sessions=unused,
            moves=unused,
            controller=unused,
            broker_epoch=unused,
            auto_create=unused,
            authorizer=self.rules,
            share_groups_on=lambda: self.share_groups_on,
            streams_groups_on=lambda: self.streams_groups_on,
        )
        self.streams_groups_on = True
        #: Reasons of the controller not to create topics, by name.
        self.creation_errors: dict[str, str] = {}
        self.share_groups_on = True
        self.persister = MemoryPersister()
        #: Ends of partitions, or why they are not known.
        self.ends: dict[TopicPartition, int | ErrorCode] = {}
        self.verified: list[object] = []
        self.guard = object()
        self.verification_error: ErrorCode | None = None
        parts = group_parts.assemble(
            self.context,
            CoordinatorContext(
                log=self.log,
                metadata=self.metadata,
                config=lambda: self.context.config,
                now_ms=self.clock.now_ms,
                timers=self.timers,
                spawn=self._spawn,
                create_topic=self._create_topic,
                count_partitions=self._count_partitions,
                registry=self.context.registry,
            ),
            consumer_protocol_enabled=lambda: True,
            verify_transaction=self._verify,
            share_persister=self.persister,
            find_ends=self._find_ends,
            create_topics=self._create_topics,
        )
        self.coordinator = parts.coordinator
        families = [
            *parts.families,
            FindCoordinatorApi(self.context, {KeyType.GROUP: parts.coordinator.topic}),
        ]
        self.handlers: dict[int, ApiHandler] = {
            each.api_key: each for family in families for each in handlers_of(family)
        }

    async def _create_topics(self, topics: Collection[InternalTopic]) -> Mapping[str, str]:
        for each in topics:
            if each.name not in self.creation_errors:
                self.created.append((each.name, each.partitions, each.replication_factor, dict(each.settings)))
        return {each.name: self.creation_errors[each.name] for each in topics if each.name in self.creation_errors}

    async def _count_partitions(self, topic: str) -> int:
        return self.metadata.partition_count(topic)

    def _spawn(self, work: Any, name: str) -> object:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.append(task)
        return task

    async def _find_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int | ErrorCode]:
        return {tp: self.ends[tp] for tp in partitions}

    async def _verify(self, transaction: object) -> object:
        self.verified.append(transaction)
        if self.verification_error is not None:
            raise Refused(self.verification_error)
        return self.guard

    async def _create_topic(self, name: str, partitions: int, factor: int, settings: Mapping[str, str]) -> ErrorCode:
        self.created.append((name, partitions, factor, settings))
        await asyncio.sleep(0)
        if self.create_error is ErrorCode.NONE:
            asyncio.get_running_loop().call_soon(self.tell, {name: partitions})
        return self.create_error

    def tell(self, topics: Mapping[str, int], *, leader: int = 1) -> None:
        """Apply the controller's metadata; leader -2 means a deletion."""
        self.metadata.update(
            UpdateMetadataRequest(
                controller_id=1,
                live_brokers=[
                    UpdateMetadataBroker(
                        id=number,
                        rack=f"rack{number}",
                        endpoints=[
                            UpdateMetadataEndpoint(port=9000 + number, host=f"host{number}", listener="PLAINTEXT")
                        ],
                    )
                    for number in (1, 2)
                ],
                topic_states=[
                    UpdateMetadataTopicState(
                        topic_name=name,
                        topic_id=topic_id(name),
                        partition_states=[
                            UpdateMetadataPartitionState(
                                partition_index=number, leader=leader, isr=[1], replicas=[1, 2], leader_epoch=0
                            )
                            for number in range(count)
                        ],
                    )
                    for name, count in topics.items()
                ],
            )
        )

    async def serve(self) -> "FakeBroker":
        self.tell({GROUP_METADATA_TOPIC: 4, "orders": 2})
        for partition in range(4):
            self.coordinator.elected(partition, 0)
        await asyncio.gather(*self.tasks)
        return self

    def send(self, request: ApiMessage, version: int) -> "asyncio.Future[ApiMessage]":
        """Send a request as the pipeline does; return the answer as the client reads it."""
        handler = self.handlers[request.API_KEY]
        channel = FakeChannel()
        call = Call(channel, handler, api_version=version, correlation_id=7, client_id="client", received_s=0.0)
        received = codec.decode(type(request), codec.encode(request, version), version)

        async def run() -> ApiMessage:
            try:
                result = handler.execute(call, received)
                if result is not None and not isinstance(result, ApiMessage):
                    result = await result
            except Refused as refusal:
                result = handler.refuse(received, refusal.code, refusal.message)
            if result is not None:
                call.reply(result)
            await channel.answer
            assert call.parts is not None
            frame = b"".join(cast(Sequence[bytes], call.parts))
            _, position = parse_response_header(request.API_KEY, version, frame, 4)
            return codec.decode(api_of(request.API_KEY).response_class, frame, version, position)

        return asyncio.ensure_future(run())

    async def ask(self, request: ApiMessage, response_type: type[R], version: int) -> R:
        response = await self.send(request, version)
        assert isinstance(response, response_type)
        return response
