"""The controller's channel to one broker.

Requests go in order and one at a time. Each is retried until the broker answers or the channel closes.

Owner: the event loop of the controller's broker.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from barnabas.broker.controller import lifeline
from barnabas.broker.controller.effects import SendLeaderAndIsr, SendStopReplica, SendUpdateMetadata
from barnabas.broker.controller.events import AnswerEvent
from barnabas.broker.controller.lifeline import Connect, Lifeline
from barnabas.broker.controller.wire import (
    LEADER_AND_ISR_VERSION,
    STOP_REPLICA_VERSION,
    UPDATE_METADATA_VERSION,
    Translator,
    leader_and_isr_answer,
    stop_replica_answer,
    stop_replica_request,
    update_metadata_answer,
)
from barnabas.broker.zookeeper_client.znodes import Endpoint
from barnabas.client.errors import ClientError
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrResponse
from barnabas.wire.messages.stop_replica import StopReplicaResponse
from barnabas.wire.messages.update_metadata import UpdateMetadataResponse

_log = logging.getLogger(__name__)

Request = SendLeaderAndIsr | SendUpdateMetadata | SendStopReplica


class BrokerChannel:
    def __init__(
        self,
        broker_id: int,
        broker_epoch: int,
        endpoint: Endpoint,
        *,
        controller_id: int,
        connect: Connect,
        translator: Translator,
        on_answer: Callable[[AnswerEvent], None],
        on_refused: Callable[[], None],
        is_suspect: bool = False,
        request_timeout_ms: int,
    ) -> None:
        self.broker_id = broker_id
        #: The broker counts as gone: the controller does not wait for its answer.
        self.is_suspect = is_suspect
        self._broker_epoch = broker_epoch
        self._controller_id = controller_id
        self._translator = translator
        self._on_answer = on_answer
        self._request_timeout_ms = request_timeout_ms
        #: Requests that are not sent yet. UpdateMetadata requests are merged, so for a broker that does not answer this holds
        #: each partition's metadata at most once.
        self._queue: deque[Request] = deque()
        self._wake = asyncio.Event()
        self._is_waiting = False
        self._lifeline = Lifeline(broker_id, endpoint, connect=connect, on_refused=on_refused, on_lost=self._wake.set)

    @property
    def life(self) -> tuple[int, bool]:
        """The broker's epoch, and whether it is a suspect. Requests for one life must not reach another."""
        return self._broker_epoch, self.is_suspect

    @property
    def is_quiet(self) -> bool:
        """Whether all requests have been answered."""
        return not self._queue and not self._is_waiting

    def put(self, request: Request) -> None:
        last = self._queue[-1] if self._queue else None
        if (
            isinstance(request, SendUpdateMetadata)
            and isinstance(last, SendUpdateMetadata)
            and not _is_about_successors(request, last)
        ):
            self._queue[-1] = replace(
                request,
                partitions={**last.partitions, **request.partitions},
                topic_ids={**last.topic_ids, **request.topic_ids},
            )
        else:
            self._queue.append(request)
        self._wake.set()

    def move(self, endpoint: Endpoint) -> None:
        """Send the queued requests, and the one in flight, to the broker's new address."""
        self._lifeline.move(endpoint)

    async def run(self) -> None:
        """Send requests until the task is cancelled, which closes the channel."""
        try:
            while True:
                while not self._queue:
                    if self._lifeline.is_lost:
                        await self._lifeline.attempt()
                        continue
                    self._wake.clear()
                    await self._wake.wait()
                request = self._queue.popleft()
                self._is_waiting = True
                answer = self._event(request, await self._deliver(request))
                self._is_waiting = False
                self._on_answer(answer)
        finally:
            self._lifeline.drop()

    async def _deliver(self, request: Request) -> ApiMessage:
        message, version = self._message(request)
        level = logging.WARNING  # only for the first failure: the following ones say nothing new
        while True:
            try:
                link = await self._lifeline.link()
                return await link.request(message, version=version, timeout_ms=self._request_timeout_ms)
            except (ClientError, OSError) as error:
                # If the broker is gone for good, the controller closes this channel. Until then, retry.
                _log.log(
                    level,
                    "[controller] %s to broker %d failed, retrying until the broker answers or its session expires: %s",
                    type(message).__name__,
                    self.broker_id,
                    error,
                )
                level = logging.DEBUG
                self._lifeline.drop()
                await asyncio.sleep(lifeline.RETRY_BACKOFF_S)

    def _message(self, request: Request) -> tuple[ApiMessage, int]:
        match request:
            case SendLeaderAndIsr():
                return self._translator.leader_and_isr(request), LEADER_AND_ISR_VERSION
            case SendUpdateMetadata():
                return self._translator.update_metadata(request, self.broker_id), UPDATE_METADATA_VERSION
            case SendStopReplica():
                return stop_replica_request(request, controller_id=self._controller_id), STOP_REPLICA_VERSION

    def _event(self, request: Request, response: ApiMessage) -> AnswerEvent:
        if isinstance(request, SendLeaderAndIsr) and isinstance(response, LeaderAndIsrResponse):
            return leader_and_isr_answer(request, response)
        if isinstance(request, SendStopReplica) and isinstance(response, StopReplicaResponse):
            return stop_replica_answer(request, response)
        if isinstance(request, SendUpdateMetadata) and isinstance(response, UpdateMetadataResponse):
            return update_metadata_answer(self.broker_id, response)
        raise TypeError(f"{type(response).__name__} does not answer {type(request).__name__}")


def _is_about_successors(request: SendUpdateMetadata, last: SendUpdateMetadata) -> bool:
    """Whether `request` names a topic that was created again under the name of a topic whose deletion `last` announces.

    Merged into one request, the broker would miss the deletion: coordinators would keep the offsets of the former topic, and
    groups would read the new topic from these offsets.
    """
    return any(last.topic_ids.get(topic, topic_id) != topic_id for topic, topic_id in request.topic_ids.items())
