"""The state of share partitions (KIP-932), for brokers alone: InitializeShareGroupState v0, ReadShareGroupState v0,
WriteShareGroupState v0 to v1 (KIP-1226), DeleteShareGroupState v0, ReadShareGroupStateSummary v0 to v1.

The operations of a request run one after the other, before anything else does; then the answer waits for all of them. A request
without a group or without partitions has an empty answer, as in Kafka.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.words import AclOperation
from barnabas.broker.runtime.share_state import SharePartitionKey, StateBatch
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.refusal import refusal
from barnabas.broker.share_coordinator.coordinator import ShareCoordinator
from barnabas.broker.share_coordinator.machine import Answer
from barnabas.broker.share_coordinator.state import NO_COUNT, NO_START_OFFSET, Change
from barnabas.wire.messages import delete_share_group_state as deleting
from barnabas.wire.messages import initialize_share_group_state as initializing
from barnabas.wire.messages import read_share_group_state as reading
from barnabas.wire.messages import read_share_group_state_summary as summing
from barnabas.wire.messages import write_share_group_state as writing
from barnabas.wire.messages.base import ApiMessage, Message

S = TypeVar("S", bound=ApiMessage)
#: Starts the operation for a partition of a request.
_Begin = Callable[[SharePartitionKey, Any], "asyncio.Future[Answer]"]
#: Fills the fields of a result besides the error.
_Show = Callable[[Answer], dict[str, Any]]

_EACH = refusal("results.partitions <- topics.partitions")


class ShareStateApi:
    def __init__(self, context: BrokerContext, coordinator: ShareCoordinator) -> None:
        self._context = context
        self._coordinator = coordinator

    # -- requests -----------------------------------------------------------------------------------------------------

    @serves("InitializeShareGroupState", _EACH)
    def initialize(self, call: Call, request: initializing.InitializeShareGroupStateRequest) -> HandlerResult:
        self._context.require_cluster(call, AclOperation.CLUSTER_ACTION)
        return self.answer(request)

    @serves("ReadShareGroupState", _EACH)
    def read(self, call: Call, request: reading.ReadShareGroupStateRequest) -> HandlerResult:
        self._context.require_cluster(call, AclOperation.CLUSTER_ACTION)
        return self.answer(request)

    @serves("WriteShareGroupState", _EACH)
    def write(self, call: Call, request: writing.WriteShareGroupStateRequest) -> HandlerResult:
        self._context.require_cluster(call, AclOperation.CLUSTER_ACTION)
        return self.answer(request)

    @serves("DeleteShareGroupState", _EACH)
    def delete(self, call: Call, request: deleting.DeleteShareGroupStateRequest) -> HandlerResult:
        self._context.require_cluster(call, AclOperation.CLUSTER_ACTION)
        return self.answer(request)

    @serves("ReadShareGroupStateSummary", _EACH)
    def read_summary(self, call: Call, request: summing.ReadShareGroupStateSummaryRequest) -> HandlerResult:
        self._context.require_cluster(call, AclOperation.CLUSTER_ACTION)
        return self.answer(request)

    async def answer(self, request: ApiMessage) -> ApiMessage:
        """Answer a request of a broker, perhaps of this one."""
        if isinstance(request, writing.WriteShareGroupStateRequest):
            return await self._all(
                request, self._begin_write, writing.WriteShareGroupStateResponse, writing.WriteStateResult
            )
        if isinstance(request, reading.ReadShareGroupStateRequest):
            return await self._all(
                request, self._begin_read, reading.ReadShareGroupStateResponse, reading.ReadStateResult, _shown_state
            )
        if isinstance(request, summing.ReadShareGroupStateSummaryRequest):
            return await self._all(
                request,
                self._begin_summary,
                summing.ReadShareGroupStateSummaryResponse,
                summing.ReadStateSummaryResult,
                _shown_summary,
            )
        if isinstance(request, initializing.InitializeShareGroupStateRequest):
            return await self._all(
                request,
                self._begin_initialize,
                initializing.InitializeShareGroupStateResponse,
                initializing.InitializeStateResult,
            )
        assert isinstance(request, deleting.DeleteShareGroupStateRequest)
        return await self._all(
            request, self._begin_delete, deleting.DeleteShareGroupStateResponse, deleting.DeleteStateResult
        )

    # -- operations of one partition ------------------------------------------------------------------------------------

    def _begin_initialize(self, key: SharePartitionKey, wanted: initializing.PartitionData) -> "asyncio.Future[Answer]":
        return self._coordinator.initialize(key, state_epoch=wanted.state_epoch, start_offset=wanted.start_offset)

    def _begin_read(self, key: SharePartitionKey, wanted: reading.PartitionData) -> "asyncio.Future[Answer]":
        return self._coordinator.read(key, leader_epoch=wanted.leader_epoch)

    def _begin_write(self, key: SharePartitionKey, wanted: writing.PartitionData) -> "asyncio.Future[Answer]":
        batches = [
            StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in wanted.state_batches
        ]
        change = Change(
            state_epoch=wanted.state_epoch,
            leader_epoch=wanted.leader_epoch,
            start_offset=wanted.start_offset,
            delivery_complete_count=wanted.delivery_complete_count,
            batches=batches,
        )
        return self._coordinator.write(key, change)

    def _begin_delete(self, key: SharePartitionKey, wanted: deleting.PartitionData) -> "asyncio.Future[Answer]":
        return self._coordinator.delete(key)

    def _begin_summary(self, key: SharePartitionKey, wanted: summing.PartitionData) -> "asyncio.Future[Answer]":
        return self._coordinator.read_summary(key)

    async def _all(
        self,
        request: Any,
        begin: _Begin,
        response_type: type[S],
        result_type: type[Message],
        show: _Show | None = None,
    ) -> S:
        partition_type: Any = result_type.__wire__["partitions"].type
        results: list[Message] = []
        waiting: list[tuple[Any, asyncio.Future[Answer]]] = []
        if request.group_id:
            for topic in request.topics:
                answers = [partition_type(partition=wanted.partition) for wanted in topic.partitions]
                if answers:
                    results.append(result_type(topic_id=topic.topic_id, partitions=answers))
                for wanted, answer in zip(topic.partitions, answers, strict=True):
                    key = SharePartitionKey(request.group_id, topic.topic_id, wanted.partition)
                    try:
                        waiting.append((answer, begin(key, wanted)))
                    except Refused as refused:
                        _fail(answer, refused.code, refused.message)
        for answer, future in waiting:
            try:
                done = await future
            except Refused as refused:
                _fail(answer, refused.code, refused.message)
                continue
            if done.error is not ErrorCode.NONE:
                _fail(answer, done.error, done.message)
            elif show is not None:
                for name, value in show(done).items():
                    setattr(answer, name, value)
        return response_type(results=results)


def _fail(answer: Any, code: ErrorCode, message: str | None) -> None:
    answer.error_code = code
    answer.error_message = message or code.name


def _shown_state(answer: Answer) -> dict[str, Any]:
    state = answer.state
    assert state is not None
    return {
        "state_epoch": state.state_epoch,
        "start_offset": state.start_offset,
        "state_batches": [
            reading.StateBatch(
                first_offset=batch.first_offset,
                last_offset=batch.last_offset,
                delivery_state=batch.delivery_state,
                delivery_count=batch.delivery_count,
            )
            for batch in state.batches
        ],
    }


def _shown_summary(answer: Answer) -> dict[str, Any]:
    state = answer.state
    if state is None:
        return {"start_offset": NO_START_OFFSET, "delivery_complete_count": NO_COUNT}
    return {
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "start_offset": state.start_offset,
        "delivery_complete_count": state.delivery_complete_count,
    }
