"""What this broker asks of the controller: topics to be made, ISRs to be changed, leadership to be taken away.

Owner: the event loop. The controller may be this broker itself; it is asked over the wire all the same.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.errors import ErrorCode
from barnabas.base.ids import BrokerEpoch, BrokerId
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
    CreateTopicsRequest,
    CreateTopicsResponse,
)

log = logging.getLogger(__name__)
R = TypeVar("R", bound=ApiMessage)

#: How long to wait for a new controller before it is asked again to take over leadership.
CONTROLLER_GONE_BACKOFF_S = 0.3
#: Between two requests for a hand-over, whatever the metadata says.
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
        """Raises `ClientError` where there is no controller, or none that answers.

        Also as soon as another broker is controller: a host without power answers nothing, and a connection to it takes long
        to fail. Kafka waits for that, with every change of an ISR behind it.
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
            raise ConnectionLost(f"broker {controller} is not controller any more") from None

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        return await self.ask(request, AlterPartitionResponse)

    async def allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
        return await self.ask(request, AllocateProducerIdsResponse)

    # -- topics -------------------------------------------------------------------------------------------------------

    async def create_topic(
        self, name: str, partitions: int, replication_factor: int, settings: Mapping[str, str]
    ) -> ErrorCode:
        """An internal topic. A cluster that is still too small for its replication factor answers so."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in settings.items()],
        )
        return (await self._create_topics([topic], timeout_ms=self._config().request_timeout_ms))[name]

    async def auto_create(self, topics: list[str]) -> dict[str, ErrorCode]:
        """Topics that clients asked for, with the broker's defaults. They are there when this broker is told of them.

        The controller waits for nothing, also not for the end of a topic of that name: who asks for what it has just deleted
        does not want it back.
        """
        begun = await self._create_topics(
            [CreatableTopic(name=name, num_partitions=-1, replication_factor=-1) for name in topics], timeout_ms=0
        )
        is_begun = ErrorCode.REQUEST_TIMED_OUT
        return {name: ErrorCode.NONE if code is is_begun else code for name, code in begun.items()}

    async def _create_topics(self, topics: list[CreatableTopic], *, timeout_ms: int) -> dict[str, ErrorCode]:
        request = CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms)
        try:
            response = await self.ask(request, CreateTopicsResponse)
        except ClientError as error:
            log.info("cannot create %s: %s", ", ".join(topic.name for topic in topics), error)
            return {topic.name: ErrorCode.LEADER_NOT_AVAILABLE for topic in topics}
        return {result.name: ErrorCode(result.error_code) for result in response.topics}

    # -- leaving ------------------------------------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Controlled shutdown: the controller moves leadership away first, so that clients do not notice."""
        if not self._others_are_alive():
            return  # nobody could take over; and a controller whose ZooKeeper is gone would never answer itself
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
                # The controller is gone, perhaps stopping like this broker: a new one is elected within moments.
                log.info("controlled shutdown not answered: %s", error)
                await self._metadata_change(CONTROLLER_GONE_BACKOFF_S)
                if not self._others_are_alive():
                    return
                continue
            if response.error_code == ErrorCode.NONE and not response.remaining_partitions:
                return
            code, left = ErrorCode(response.error_code), len(response.remaining_partitions)
            log.info("controlled shutdown: %s, %d partitions still led here", code.name, left)
            if code is ErrorCode.NONE and not self._others_are_alive():
                return  # nobody is left to take over
            await asyncio.sleep(HAND_OVER_PAUSE_S)
            await self._metadata_change(retry_s)
        log.warning("leaving without a complete hand-over; the controller elects new leaders when this broker is gone")

    async def _metadata_change(self, timeout_s: float) -> None:
        """Wait until the controller tells something new, but not for ever."""
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
