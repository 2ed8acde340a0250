"""What handlers make of requests in versions of before Kafka 0.11, and of requests that come before the metadata."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.record.legacy_records import LegacyRecordBatch, LegacyRecordBatchBuilder

from barnabas.api.fetch import FetchApi
from barnabas.api.log_dirs import LogDirsApi
from barnabas.api.offsets import OffsetsApi
from barnabas.api.produce import ProduceApi
from barnabas.core.clock import ManualClock
from barnabas.core.config.log_config import LogConfig
from barnabas.core.errors import ErrorCode
from barnabas.core.ids import BrokerId, TopicPartition
from barnabas.protocol.codec import decode, encode
from barnabas.protocol.compression import Codec
from barnabas.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.protocol.messages.fetch import FetchResponse
from barnabas.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.records import BatchBuilder, iter_records
from barnabas.replication.fetch_session_cache import FetchContext, FetchedPartition, FetchKey
from barnabas.replication.machine import PartitionMachine
from barnabas.replication.manager import AppendOutcome
from barnabas.replication.partition import FetchParams, Partition, PartitionRead
from barnabas.storage.environment import InlineThreads, LogEnvironment
from barnabas.storage.log import Log
from barnabas.storage.recovery import open_log

TP = TopicPartition("t", 0)
ME = BrokerId(1)


class KeptAnswer:
    """A call that keeps its answer."""

    def __init__(self, version: int) -> None:
        self.api_version = version
        self.request_bytes = 0
        self.response: Any = None
        self.overlaps: frozenset[int] = frozenset()

    def reply(self, response: Any) -> None:
        self.response = response

    def charge(self) -> bool:
        return False


def context_of(**parts: Any) -> Any:
    return SimpleNamespace(
        allows=lambda *args: True, allows_topic=lambda *args: True, throttle=lambda *args: None, **parts
    )


def produce(version: int, records: bytearray) -> tuple[ErrorCode, list[Any]]:
    """The answer, and what went on to the log."""
    appended: list[Any] = []

    def append(entries: list[Any], **rest: Any) -> None:
        appended.extend(bytes(entry.records) for entry in entries)
        rest["on_done"]([AppendOutcome() for _ in entries])

    api: Any = ProduceApi(context_of(replicas=SimpleNamespace(append=append)), SimpleNamespace())  # type: ignore[arg-type]
    data = PartitionProduceData(index=0, records=memoryview(records))
    call: Any = KeptAnswer(version)
    api.handle(call, ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t", partition_data=[data])]))
    [answer] = call.response.responses[0].partition_responses
    return ErrorCode(answer.error_code), appended


def message_set(magic: int) -> bytearray:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=0, batch_size=1000)
    builder.append(0, timestamp=1_000, key=b"k", value=b"v")
    return bytearray(builder.build())


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1)])
def test_message_set_is_appended_as_a_batch(version: int, magic: int) -> None:
    code, [appended] = produce(version, message_set(magic))
    assert code is ErrorCode.NONE
    assert [(record.key, record.value) for record in iter_records(appended)] == [(b"k", b"v")]


def test_corrupt_message_set_is_answered_as_such() -> None:
    damaged = message_set(1)
    damaged[-1] ^= 1
    assert produce(2, damaged) == (ErrorCode.CORRUPT_MESSAGE, [])


def test_message_set_in_a_request_that_carries_batches_is_invalid() -> None:
    assert produce(3, message_set(1)) == (ErrorCode.INVALID_RECORD, [])


@pytest.fixture
def log(tmp_path: Path) -> Log:
    clock = ManualClock()
    log = open_log(str(tmp_path / "t-0"), config=LogConfig(), env=LogEnvironment(clock=clock), partition=TP)
    for codec in (Codec.NONE, Codec.ZSTD):
        builder = BatchBuilder(codec=codec)
        for number in range(5):
            builder.append(b"%d" % number, b"v", timestamp=1_000, headers=[("h", b"1")])
        log.append_as_leader(bytearray(builder.build()), leader_epoch=0, now_ms=1_000)
    return log


def fetch(log: Log, version: int, offset: int, *, may_convert: bool = True) -> tuple[ErrorCode, bytes, PartitionRead]:
    found = log.read(offset, max_bytes=1 << 20, max_offset=log.log_end_offset)
    read = PartitionRead()
    read.ranges, read.size_bytes = found.ranges, found.size_bytes
    counters = SimpleNamespace(bytes_out=SimpleNamespace(value=0))
    config = LogConfig(message_downconversion_enable=may_convert)
    context = context_of(
        replicas=SimpleNamespace(counters=lambda topic: counters),
        dynamic=SimpleNamespace(log_config=lambda topic: config),
        threads=InlineThreads(),
    )
    want = FetchedPartition(FetchKey("t", 0), offset, 1 << 20, -1, -1, -1)
    params = FetchParams(-1, -1, 0, 0, 1 << 20, 0, "", may_read_from_follower=False)
    call: Any = KeptAnswer(version)
    api: Any = FetchApi(context)
    fetched: Any = FetchContext(None, [want], incremental=False)
    api._answer(call, fetched, params, [(want, TP)], [read])
    told = decode(FetchResponse, encode(call.response, version), version)
    [partition] = told.responses[0].partitions
    assert partition.records is not None
    return ErrorCode(partition.error_code), bytes(partition.records), read  # type: ignore[arg-type]


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_older_consumer_is_given_messages_from_its_offset_on(log: Log, version: int, magic: int) -> None:
    code, records, read = fetch(log, version, 3)
    assert code is ErrorCode.NONE
    size = 12 + int.from_bytes(records[8:12])
    assert len(records) == 2 * size  # 3 and 4; zstd ends the set
    assert [(each.offset, each.key) for each in LegacyRecordBatch(records[:size], magic)] == [(3, b"3")]
    assert read.ranges == []  # released


def test_older_consumer_is_told_that_it_cannot_read_zstd(log: Log) -> None:
    assert fetch(log, 3, 5)[:2] == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, b"")


def test_topic_that_is_not_converted_is_refused_to_older_consumers(log: Log) -> None:
    code, records, read = fetch(log, 3, 0, may_convert=False)
    assert (code, records, read.ranges) == (ErrorCode.UNSUPPORTED_VERSION, b"", [])


@pytest.mark.parametrize(
    ("timestamp", "count", "offsets"),
    [(-1, 1, [5]), (-1, 9, [5, 0]), (-2, 9, [0]), (999, 9, []), (1_000, 9, [0]), (5_000, 9, [5, 0])],
)
def test_oldest_consumers_search_by_where_segments_begin(
    log: Log, timestamp: int, count: int, offsets: list[int]
) -> None:
    log.update_high_watermark(5)
    machine = PartitionMachine(local_broker=ME, replica_lag_time_max_ms=1000)
    partition = Partition(TP, machine, ManualClock(), on_high_watermark=lambda partition: None)
    partition.log = log
    found = partition.offsets_before(timestamp, count, is_from_client=True, now_ms=5_000)
    assert found == offsets


def test_version_0_of_list_offsets_answers_a_list() -> None:
    partition = SimpleNamespace(leader_log=lambda epoch: None, offsets_before=lambda *args, **rest: [7, 3])
    clock = SimpleNamespace(now_ms=lambda: 0)
    api: Any = OffsetsApi(context_of(replicas=SimpleNamespace(require=lambda tp: partition), clock=clock))
    asked = ListOffsetsPartition(partition_index=0, timestamp=-1, max_num_offsets=2)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[asked])])
    response = api.list_offsets(KeptAnswer(0), request)
    assert response.topics[0].partitions[0].old_style_offsets == [7, 3]


def test_leader_deletes_records_of_a_topic_whose_metadata_has_not_come_yet() -> None:
    def delete_records(entries: Any, *, timeout_ms: int, on_done: Any) -> None:
        on_done([(ErrorCode.NONE, offset) for _, offset in entries])

    context = context_of(
        replicas=SimpleNamespace(delete_records=delete_records),
        metadata=SimpleNamespace(topic=lambda name: None),
        dynamic=SimpleNamespace(log_config=lambda topic: LogConfig()),
    )
    api: Any = LogDirsApi(context)
    wanted = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=5)])
    call: Any = KeptAnswer(2)
    api.delete_records(call, DeleteRecordsRequest(topics=[wanted], timeout_ms=1_000))
    [answer] = call.response.topics[0].partitions
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.NONE, 5)
