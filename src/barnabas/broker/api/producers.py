"""DescribeProducers, v0 (KIP-664): the producers that a replica knows in its partitions; finds hanging transactions."""

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import check_topic_name
from barnabas.base.words import AclOperation
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.refusal import refusal
from barnabas.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


class ProducersApi:
    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    @serves("DescribeProducers", refusal("topics.partitions <- topics.partition_indexes"))
    def describe(self, call: Call, request: DescribeProducersRequest) -> HandlerResult:
        response = DescribeProducersResponse()
        for topic in request.topics:
            topic_response = TopicResponse(name=topic.name)
            response.topics.append(topic_response)
            error, message = self._topic_error(call, topic.name)
            for number in topic.partition_indexes:
                answer = PartitionResponse(partition_index=number, error_code=error, error_message=message)
                topic_response.partitions.append(answer)
                if error is ErrorCode.NONE:
                    self._describe(TopicPartition(topic.name, number), answer)
        return response

    def _topic_error(self, call: Call, name: str) -> tuple[ErrorCode, str | None]:
        try:
            check_topic_name(name)
        except Refused as refused:
            return refused.code, refused.message
        if not self._context.allows_topic(call, AclOperation.READ, name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED, None
        if self._context.metadata.topic(name) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        return ErrorCode.NONE, None

    def _describe(self, partition: TopicPartition, answer: PartitionResponse) -> None:
        try:
            log = self._context.replicas.hosted.require(partition).local_log
        except Refused as refusal:
            answer.error_code = refusal.code
            return
        for entry in log.producers.producers.values():
            first_offset = entry.txn_first_offset
            answer.active_producers.append(
                ProducerState(
                    producer_id=entry.producer_id,
                    producer_epoch=entry.producer_epoch,
                    last_sequence=entry.last_sequence,
                    last_timestamp=entry.last_timestamp,
                    coordinator_epoch=entry.coordinator_epoch,
                    current_txn_start_offset=-1 if first_offset is None else first_offset,
                )
            )
