"""Checks that Kafka makes of Produce and ListOffsets requests before, or instead of, carrying them out."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import ErrorCode, Malformed, Refused
from barnabas.base.ids import BrokerId, LeaderEpoch, TopicPartition
from barnabas.base.topics import INTERNAL_TOPICS
from barnabas.broker.api.metadata import MetadataApi, refuse_metadata
from barnabas.broker.api.offsets import OffsetsApi
from barnabas.broker.api.produce import ProduceApi
from barnabas.broker.replication.machine import PartitionMachine
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.state import PartitionLeadership
from barnabas.broker.storage.environment import LogEnvironment
from barnabas.broker.storage.recovery import open_log
from barnabas.wire.compression import Codec
from barnabas.wire.frame import encode_response
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from barnabas.wire.record_batch import MAGIC_AT
from barnabas.wire.records import BatchBuilder
from tests.manual_time import ManualClock

TP = TopicPartition("t", 0)
ME, OTHER = BrokerId(1), BrokerId(2)


class Replies:
    """A call that keeps its answer."""

    def __init__(self, version: int, client_id: str | None = None) -> None:
        self.api_version = version
        self.client_id = client_id
        self.request_bytes = 0
        self.response: Any = None
        self.overlaps: frozenset[int] = frozenset()

    def reply(self, response: Any) -> None:
        self.response = response


def batch(codec: Codec = Codec.NONE, *, transactional: bool = False) -> bytearray:
    producer_id, epoch, sequence = (7, 0, 0) if transactional else (-1, -1, -1)
    builder = BatchBuilder(
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    builder.append(b"k", b"v" * 100, timestamp=1_000)
    return bytearray(builder.build())


def produce(
    version: int,
    records: bytearray,
    *,
    acks: int = 1,
    allowed: bool = True,
    transaction: str | None = None,
    topic: str = "t",
    client_id: str | None = None,
) -> Any:
    """The answer for the one partition; `None` where the records went on to the log."""
    call: Any = Replies(version, client_id)
    appended: list[object] = []

    def append(entries: Any, **rest: Any) -> None:
        appended.extend(entries)
        rest["on_done"](entries)

    context: Any = SimpleNamespace(
        allows=lambda *args: allowed,
        allows_topic=lambda *args: allowed,
        quotas=SimpleNamespace(limited=frozenset()),
        replicas=SimpleNamespace(appends=SimpleNamespace(append=append)),
    )
    data = PartitionProduceData(index=0, records=memoryview(records))
    request = ProduceRequest(
        acks=acks, transactional_id=transaction, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    api: Any = ProduceApi(context, SimpleNamespace())  # type: ignore[arg-type]
    api.handle(call, request)
    if appended:
        return None
    assert isinstance(call.response, ProduceResponse)
    return call.response.responses[0].partition_responses[0]


def test_zstd_is_refused_in_versions_whose_consumers_may_not_know_it() -> None:
    assert produce(6, batch(Codec.ZSTD)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert produce(7, batch(Codec.ZSTD)) is None
    assert produce(6, batch(Codec.GZIP)) is None


def test_old_message_formats_are_invalid_records_in_a_produce_request() -> None:
    old = batch()
    old[MAGIC_AT] = 1
    assert produce(9, old).error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
def test_no_client_but_an_admin_tool_writes_to_the_topics_of_coordinators(topic: str) -> None:
    """A coordinator that loads the partition would take any record there for one of its own."""
    assert produce(9, batch(), topic=topic, client_id="rdkafka").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert produce(9, batch(), topic=topic, client_id="__admin_client") is None
    assert produce(9, batch(), topic=topic, allowed=False).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_refused_produce_without_acks_ends_the_connection_instead_of_answering() -> None:
    """A client without acks would take a response for the answer to its next request."""
    with pytest.raises(Malformed, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        produce(9, batch(), acks=0, allowed=False, transaction="txn")


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_records_of_a_transaction_are_refused_without_its_transactional_id(codec: Codec) -> None:
    """They would join the open transaction of a producer whose id the client may not use, without any check."""
    with pytest.raises(Refused) as refusal:
        produce(9, batch(codec, transactional=True))
    assert refusal.value.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class Lagging:
    """A leader elected a moment ago: two records of the old epoch, of which one is known to be committed."""

    def __init__(self, folder: Path) -> None:
        clock = ManualClock()
        machine = PartitionMachine(local_broker=ME, replica_lag_time_max_ms=1000)
        partition = Partition(TP, machine, clock, on_high_watermark=lambda partition: None)
        partition.attach(
            open_log(str(folder / "t-0"), config=LogConfig(), env=LogEnvironment(clock=clock), partition=TP)
        )
        for timestamp in (1_000, 2_000):
            builder = BatchBuilder()
            builder.append(None, b"v", timestamp=timestamp)
            partition.log.append_as_leader(bytearray(builder.build()), leader_epoch=0, now_ms=timestamp)
        partition.log.update_high_watermark(1)
        partition.become_leader(
            PartitionLeadership(
                leader=ME, leader_epoch=LeaderEpoch(1), isr=(ME, OTHER), partition_epoch=1, replicas=(ME, OTHER)
            ),
            now_ms=3_000,
        )
        context: Any = SimpleNamespace(
            replicas=SimpleNamespace(
                hosted=SimpleNamespace(require=lambda tp: partition, get=lambda tp: partition),
                fetches=SimpleNamespace(tier=None),
            ),
            allows_topic=lambda *args: True,
            clock=ManualClock(),
        )
        self.partition = partition
        self.api = OffsetsApi(context)

    def list(self, timestamp: int, *, version: int = 9, epoch: int = -1) -> tuple[ErrorCode, int]:
        asked = ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=0, topics=[ListOffsetsTopic(name="t", partitions=[asked])]
        )
        call: Any = Replies(version)
        response: Any = self.api.list_offsets(call, request)
        if asyncio.iscoroutine(response):  # to look for a timestamp may take turns
            response = asyncio.run(response)
        [answer] = response.topics[0].partitions
        return ErrorCode(answer.error_code), answer.offset


def test_new_leader_refuses_only_lookups_that_need_its_high_watermark(tmp_path: Path) -> None:
    lagging = Lagging(tmp_path)
    assert lagging.list(-1) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    assert lagging.list(2_000) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    assert lagging.list(-3) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    assert lagging.list(1_000) == (ErrorCode.NONE, 0)
    assert lagging.list(-2) == (ErrorCode.NONE, 0)
    assert lagging.list(-4) == (ErrorCode.NONE, 0)


def test_log_end_is_reported_only_by_a_settled_leader_of_the_requested_epoch(tmp_path: Path) -> None:
    leader = Lagging(tmp_path)
    leader.partition.log.update_high_watermark(2)
    assert leader.list(-1) == leader.list(-1, epoch=1) == (ErrorCode.NONE, 2)
    assert leader.list(-1, epoch=0) == (ErrorCode.FENCED_LEADER_EPOCH, -1)
    assert leader.list(-1, epoch=2) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1)
    leader.partition.become_follower(
        PartitionLeadership(
            leader=OTHER, leader_epoch=LeaderEpoch(2), isr=(ME, OTHER), partition_epoch=2, replicas=(ME, OTHER)
        )
    )
    assert leader.list(-1) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_partition_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    leader = Lagging(tmp_path)
    leader.partition.log.update_high_watermark(2)
    asked = [ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=-1) for index in (0, 1, 0)]
    for topics in (
        [ListOffsetsTopic(name="t", partitions=asked)],
        [ListOffsetsTopic(name="t", partitions=asked[:2]), ListOffsetsTopic(name="t", partitions=asked[2:])],
    ):
        call: Any = Replies(9)
        response: Any = leader.api.list_offsets(call, ListOffsetsRequest(replica_id=-1, topics=topics))
        codes = [(p.partition_index, ErrorCode(p.error_code)) for topic in response.topics for p in topic.partitions]
        assert codes == [(0, ErrorCode.INVALID_REQUEST), (1, ErrorCode.NONE), (0, ErrorCode.INVALID_REQUEST)]


def test_clients_that_do_not_know_offset_not_available_hear_that_there_is_no_leader(tmp_path: Path) -> None:
    assert Lagging(tmp_path).list(-1, version=4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


@pytest.mark.parametrize(("timestamp", "version"), [(-3, 6), (-4, 7), (-5, 8), (-6, 10), (-7, 11), (-1_000, 11)])
def test_special_timestamps_that_a_version_does_not_have_are_refused(
    tmp_path: Path, timestamp: int, version: int
) -> None:
    assert Lagging(tmp_path).list(timestamp, version=version) == (ErrorCode.UNSUPPORTED_VERSION, -1)


@pytest.mark.parametrize("topic", [MetadataRequestTopic(name=None), MetadataRequestTopic(name="t", topic_id=b"i" * 16)])
@pytest.mark.parametrize("version", [10, 11])
def test_topic_ids_are_refused_in_metadata_versions_that_cannot_answer_them(
    version: int, topic: MetadataRequestTopic
) -> None:
    request = MetadataRequest(topics=[topic])
    api: Any = MetadataApi(SimpleNamespace(metadata=None))  # type: ignore[arg-type]
    with pytest.raises(Refused) as caught:
        api.handle(Replies(version), request)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    encode_response(refuse_metadata(request, caught.value.code, caught.value.message), version, 1)
