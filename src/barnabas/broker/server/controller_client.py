"""Sends this broker's requests to the controller: create topics, change ISRs, move leadership away.

Owner: the event loop. The controller may be this broker itself; the requests are sent over the network all the same.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.errors import ErrorCode
from barnabas.base.ids import BrokerEpoch, BrokerId
from barnabas.broker.groups.streams_topics import InternalTopic
from barnabas.broker.server.broker_connections import BrokerConnections
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache, MetadataChange
from barnabas.client.errors import ClientError, ConnectionLost
from barnabas.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from barnabas.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from barnabas.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

log = logging.getLogger(__name__)
R = TypeVar("R", bound=ApiMessage)

#: How long to wait for a new controller before the request to move leadership is repeated.
CONTROLLER_GONE_BACKOFF_S = 0.3
#: Pause between two requests to move leadership, whatever the metadata shows.
HAND_OVER_PAUSE_S = 0.1


class ControllerClient:
    def __init__(
        self,
        broker_id: BrokerId,
        connections: BrokerConnections,
        metadata: MetadataCache,
        *,
        config: Callable[[], BrokerConfig],
        broker_epoch: Callable[[], BrokerEpoch],
    ) -> None:
        self._broker_id = broker_id
        self._connections = connections
        self._metadata = metadata
        self._config = config
        self._broker_epoch = broker_epoch

    async def ask(self, request: ApiMessage, response_type: type[R]) -> R:
        """Send a request to the controller. Raises `ClientError` if there is no controller, or it does not answer.

        Also raises it as soon as another broker is controller: a host without power answers nothing, and a connection to it
        takes long to fail. Kafka waits for that, with every change of an ISR behind it.
        """
        controller = self._metadata.controller_id
        if controller is None:
            raise ConnectionLost("no controller is known")
        timeout_ms = self._config().controller_socket_timeout_ms
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as until_moved:

                def look(change: MetadataChange) -> None:
                    if change.controller_changed and not until_moved.expired():
                        until_moved.reschedule(loop.time())

                unsubscribe = self._metadata.subscribe(look)
                try:
                    return await self._connections.request(controller, request, response_type, timeout_ms=timeout_ms)
                finally:
                    unsubscribe()
        except TimeoutError:
            raise ConnectionLost(f"broker {controller} is no longer the controller") from None

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        return await self.ask(request, AlterPartitionResponse)

    async def allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
        return await self.ask(request, AllocateProducerIdsResponse)

    # -- topics -------------------------------------------------------------------------------------------------------

    async def create_topic(
        self, name: str, partitions: int, replication_factor: int, settings: Mapping[str, str]
    ) -> ErrorCode:
        """Create an internal topic. Returns the error, also if the cluster is still too small for the replication factor."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in settings.items()],
        )
        return (await self._create_topics([topic], timeout_ms=self._config().request_timeout_ms))[name]

    async def auto_create(self, topics: list[str]) -> dict[str, ErrorCode]:
        """Create topics that clients asked for, with the broker's defaults. This broker learns of them by its metadata.

        The controller does not wait, not even for the deletion of a topic of the same name: a client that uses a topic just
        after deleting it does not want it back.
        """
        begun = await self._create_topics(
            [CreatableTopic(name=name, num_partitions=-1, replication_factor=-1) for name in topics], timeout_ms=0
        )
        is_begun = ErrorCode.REQUEST_TIMED_OUT
        return {name: ErrorCode.NONE if code is is_begun else code for name, code in begun.items()}

    async def create_for_group(self, topics: Collection[InternalTopic]) -> dict[str, str]:
        """Create the internal topics of a streams group. Returns the reasons for those that could not be created."""
        wanted = [
            CreatableTopic(
                name=each.name,
                num_partitions=each.partitions,
                replication_factor=each.replication_factor,
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in each.settings],
            )
            for each in topics
        ]
        results = await self._ask_to_create(wanted, timeout_ms=self._config().request_timeout_ms)
        exists = {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
        return {
            name: result.error_message or ErrorCode(result.error_code).name
            for name, result in results.items()
            if result.error_code not in exists
        }

    async def _create_topics(self, topics: list[CreatableTopic], *, timeout_ms: int) -> dict[str, ErrorCode]:
        results = await self._ask_to_create(topics, timeout_ms=timeout_ms)
        return {name: ErrorCode(result.error_code) for name, result in results.items()}

    async def _ask_to_create(self, topics: list[CreatableTopic], *, timeout_ms: int) -> dict[str, CreatableTopicResult]:
        request = CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms)
        try:
            response = await self.ask(request, CreateTopicsResponse)
        except ClientError as error:
            log.info("[controller client] cannot create %s: %s", ", ".join(topic.name for topic in topics), error)
            code, reason = ErrorCode.LEADER_NOT_AVAILABLE, f"the controller did not answer: {error}"
            return {
                topic.name: CreatableTopicResult(name=topic.name, error_code=code, error_message=reason)
                for topic in topics
            }
        return {result.name: result for result in response.topics}

    # -- leaving ------------------------------------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Carry out a controlled shutdown: the controller moves leadership away first, so that clients do not notice."""
        if not self._others_are_alive():
            return  # no other broker could lead; and a controller without ZooKeeper would never answer
        loop, config = asyncio.get_running_loop(), self._config()
        retry_s = config.controlled_shutdown_retry_backoff_ms / 1000
        deadline_s = loop.time() + config.controlled_shutdown_max_retries * retry_s
        while loop.time() < deadline_s:
            try:
                response = await self.ask(
                    ControlledShutdownRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch()),
                    ControlledShutdownResponse,
                )
            except ClientError as error:
                # The controller is gone, and may be shutting down too: a new one is elected within moments.
                log.info("[controlled shutdown] the controller did not answer: %s", error)
                await self._metadata_change(CONTROLLER_GONE_BACKOFF_S)
                if not self._others_are_alive():
                    return
                continue
            if response.error_code == ErrorCode.NONE and not response.remaining_partitions:
                return
            code, remaining = ErrorCode(response.error_code), len(response.remaining_partitions)
            log.info("[controlled shutdown] %s, this broker still leads %d partitions", code.name, remaining)
            if code is ErrorCode.NONE and not self._others_are_alive():
                return  # no other broker is alive to take over
            await asyncio.sleep(HAND_OVER_PAUSE_S)
            await self._metadata_change(retry_s)
        log.warning(
            "[controlled shutdown] leaving before all leaders have moved; the controller elects new leaders when "
            "this broker is gone"
        )

    async def _metadata_change(self, timeout_s: float) -> None:
        """Wait until the controller sends an update, or until the timeout."""
        changed = asyncio.Event()
        unsubscribe = self._metadata.subscribe(lambda change: changed.set())
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return
        finally:
            unsubscribe()

    def _others_are_alive(self) -> bool:
        return any(broker != self._broker_id for broker in self._metadata.brokers)
