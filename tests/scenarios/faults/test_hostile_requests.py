"""Well-formed requests that ask for too much, or for something unforeseen, against a real broker."""

import resource
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from barnabas.base.errors import ErrorCode
from barnabas.cli.local_cluster import LocalCluster
from barnabas.wire import frame
from barnabas.wire.compression import Codec, compress
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from barnabas.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from barnabas.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.wire.record_batch import (
    BASE_TIMESTAMP_AT,
    CRC_AT,
    LAST_OFFSET_DELTA_AT,
    RECORD_COUNT_AT,
    TIMESTAMP_TYPE_FLAG,
    compute_crc,
)
from barnabas.wire.records import BatchBuilder
from barnabas.wire.varint import append_uvarint, encode_varint
from tests.scenarios.faults.hostile_peer import Bystander, Victim, ask, batch, is_closed, produce
from tests.soak.workload import QUIET


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 20_000)), hard))  # the broker inherits it
    with LocalCluster(brokers=1, config={"auto.create.topics.enable": "false"}) as one:
        yield one


@pytest.fixture
def victim(cluster: LocalCluster, topic: str) -> Iterator[Victim]:
    attacked = Victim(cluster, topic)
    yield attacked
    for peer in attacked.peers:
        peer.close()


def new_producer(victim: Victim, peer: socket.socket, transactional_id: str) -> InitProducerIdResponse:
    """Create a transactional producer, as soon as the coordinator is available."""

    def made() -> InitProducerIdResponse:
        found = ask(peer, FindCoordinatorRequest(key=transactional_id, key_type=1), 2)
        assert isinstance(found, FindCoordinatorResponse)
        answer = ask(peer, InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000), 2)
        assert isinstance(answer, InitProducerIdResponse)
        return answer

    answers: list[InitProducerIdResponse] = []
    victim.admin.wait(lambda: answers.append(made()) or answers[-1].error_code == 0, "a producer id")
    return answers[-1]


def test_adding_no_partitions_to_a_transaction_does_not_stop_the_broker(victim: Victim):
    peer = victim.connect()
    producer = new_producer(victim, peer, "x")
    for version in range(4):
        empty = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[],
        )
        ask(peer, empty, version)
    victim.write()


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("attributes", [0, TIMESTAMP_TYPE_FLAG], ids=["create time", "append time"])
def test_claim_of_two_billion_records_is_refused_before_anything_is_built_from_it(
    victim: Victim, codec: Codec, attributes: int
):
    lie = batch(codec, b"x" * 40, 2**31 - 1, attributes)
    with victim.connect() as peer:
        for _ in range(20):
            answer = produce(peer, victim.topic, bytes(lie))
            assert answer.error_code == ErrorCode.INVALID_RECORD
            assert "cannot hold" in (answer.error_message or "")
    victim.check()


def test_refusal_of_many_records_names_the_first_hundred(victim: Victim):
    count = 100_000
    stamped = batch(Codec.NONE, b"\x0c\0\0\0\1\1\0" * count, count, TIMESTAMP_TYPE_FLAG)
    with victim.connect() as peer:
        answer = produce(peer, victim.topic, bytes(stamped))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in answer.record_errors] == list(range(100))
    victim.check()


#: The most that the broker's loop may compute before it serves another client's request.
BYSTANDER_S_MAX = 0.5


def many_names(count: int) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=f"{number:x}") for number in range(count)]


def test_metadata_of_very_many_topics_is_answered_while_others_are_served(victim: Victim):
    names = many_names(60_000)
    with victim.connect() as peer, Bystander(victim) as other:
        peer.settimeout(60)
        answer = ask(peer, MetadataRequest(topics=names, allow_auto_topic_creation=False), 9)
    assert isinstance(answer, MetadataResponse)
    assert [topic.name for topic in answer.topics] == [topic.name for topic in names]
    assert answer.brokers and other.count > 10
    assert other.worst_s < BYSTANDER_S_MAX


def test_topic_that_is_named_again_and_again_is_described_once(victim: Victim):
    with victim.connect() as peer:
        named = [MetadataRequestTopic(name=victim.topic)] * 500
        answer = ask(peer, MetadataRequest(topics=named), 9)
    assert isinstance(answer, MetadataResponse) and len(answer.topics) == 1


@pytest.mark.parametrize("partitions", [400, 30_000])
def test_offsets_of_very_many_partitions_come_in_one_piece(victim: Victim, partitions: int):
    wanted = [ListOffsetsPartition(partition_index=number, timestamp=-1) for number in range(partitions)]
    topics = [ListOffsetsTopic(name=name, partitions=wanted) for name in (victim.topic, "other")]
    with victim.connect() as peer, Bystander(victim) as other:
        peer.settimeout(60)
        answer = ask(peer, ListOffsetsRequest(replica_id=-1, topics=topics), 6)
    assert isinstance(answer, ListOffsetsResponse)
    assert [topic.name for topic in answer.topics] == [victim.topic, "other"]
    for topic in answer.topics:
        assert [each.partition_index for each in topic.partitions] == list(range(partitions))
    assert answer.topics[0].partitions[0].error_code == 0
    assert answer.topics[0].partitions[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert other.worst_s < BYSTANDER_S_MAX


def test_request_with_too_many_elements_is_refused_by_the_name_of_the_limit(victim: Victim):
    names = [CreatableTopic(name=f"{number}", num_partitions=1, replication_factor=1) for number in range(11_000)]
    with victim.connect() as peer, Bystander(victim) as other:
        peer.settimeout(60)
        answer = ask(peer, CreateTopicsRequest(topics=names, timeout_ms=1000, validate_only=True), 5)
        assert isinstance(answer, CreateTopicsResponse)
        assert {topic.error_code for topic in answer.topics} == {ErrorCode.INVALID_REQUEST}
        assert "barnabas.request.max.elements is 10000" in (answer.topics[0].error_message or "")
        with pytest.raises(ConnectionResetError):
            ask(peer, MetadataRequest(topics=many_names(110_000), allow_auto_topic_creation=False), 9)
    assert victim.logged("110000 elements are too many")
    assert other.worst_s < BYSTANDER_S_MAX


def test_duplicates_among_many_resources_are_found_in_no_time(victim: Victim):
    resources = [AlterConfigsResource(resource_type=2, resource_name=f"{number}") for number in range(9_900)]
    with victim.connect() as peer, Bystander(victim) as other:
        answer = ask(peer, IncrementalAlterConfigsRequest(resources=[*resources, resources[0]]), 1)
    assert isinstance(answer, IncrementalAlterConfigsResponse)
    codes = [each.error_code for each in answer.responses]
    assert (codes[0], codes[-1]) == (ErrorCode.INVALID_REQUEST,) * 2
    assert set(codes[1:-1]) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert other.worst_s < BYSTANDER_S_MAX


def test_more_settings_than_there_are_for_one_resource_are_refused_by_their_number(victim: Victim):
    settings = [AlterableConfig(name=f"no.setting.{number}", config_operation=0, value="1") for number in range(9_000)]
    resource = AlterConfigsResource(resource_type=2, resource_name=victim.topic, configs=settings)
    with victim.connect() as peer:
        answer = ask(peer, IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert isinstance(answer, IncrementalAlterConfigsResponse)
    assert answer.responses[0].error_code == ErrorCode.INVALID_REQUEST
    assert answer.responses[0].error_message == "9000 settings for one resource, which has at most 1000"
    victim.check()


def test_fetch_of_very_many_partitions_is_answered_in_turns(victim: Victim):
    topic, count = f"{victim.topic}-wide", 1_020
    victim.admin.create(topic, partitions=count, replicas=1)
    value = b"x" * 100
    ends = dict.fromkeys(range(count), 0)

    def write(*partitions: int) -> None:
        producer = Producer({"bootstrap.servers": victim.cluster.bootstrap, **QUIET})
        for partition in partitions:
            producer.produce(topic, value, partition=partition)
            ends[partition] += 1
        assert producer.flush(60) == 0

    def fetch(peer: socket.socket, offsets: dict[int, int], max_bytes: int, max_wait_ms: int = 0) -> list[int]:
        wanted = [
            FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
            for number, offset in offsets.items()
        ]
        asked = [FetchTopic(topic=topic, partitions=wanted)]
        request = FetchRequest(
            max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=max_bytes, session_id=0, session_epoch=-1, topics=asked
        )
        answer = ask(peer, request, 12)
        assert isinstance(answer, FetchResponse)
        (answered,) = answer.responses
        assert [each.partition_index for each in answered.partitions] == list(offsets)
        assert {each.error_code for each in answered.partitions} == {0}
        return [each.partition_index for each in answered.partitions if each.records]

    start = dict(ends)
    write(3, 700, 1_010)
    with victim.connect() as peer:
        assert fetch(peer, start, 1 << 20) == [3, 700, 1_010]
        assert fetch(peer, start, 300) == [3]  # one batch in any case, and no more than the limit
        before = dict(ends)
        writer = threading.Timer(0.3, write, [1_011])
        writer.start()
        assert fetch(peer, before, 1 << 20, max_wait_ms=60_000) == [1_011]
        writer.join()
    victim.check()


@pytest.mark.parametrize("count", [50_001, 2**31 - 1])
def test_topic_of_too_many_partitions_is_refused(victim: Victim, count: int):
    new = CreatableTopic(name=f"{victim.topic}-many", num_partitions=count, replication_factor=1)
    more = CreatePartitionsTopic(name=victim.topic, count=count)
    with victim.connect() as peer, Bystander(victim) as other:
        created = ask(peer, CreateTopicsRequest(topics=[new], timeout_ms=5000), 5)
        grown = ask(peer, CreatePartitionsRequest(topics=[more], timeout_ms=5000), 2)
    assert isinstance(created, CreateTopicsResponse) and isinstance(grown, CreatePartitionsResponse)
    assert created.topics[0].error_code == grown.results[0].error_code == ErrorCode.INVALID_PARTITIONS
    assert other.worst_s < BYSTANDER_S_MAX
    victim.check()


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD], ids=lambda codec: codec.label)
def test_bomb_that_is_stored_costs_little_each_time_a_timestamp_is_looked_for(victim: Victim, codec: Codec):
    value = bytes(120_000_000)
    record = b"\0\0\0\1" + encode_varint(len(value)) + value + b"\0"
    bomb = batch(codec, compress(codec, encode_varint(len(record)) + record), 1)
    # The second timestamp is wrong: no record is as late.
    struct.pack_into(">qq", bomb, BASE_TIMESTAMP_AT, 1_000, 2_000)
    struct.pack_into(">I", bomb, CRC_AT, compute_crc(bomb, 0, len(bomb) - 12))
    wanted = [ListOffsetsPartition(partition_index=0, timestamp=1_500)]
    question = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=victim.topic, partitions=wanted)])
    with victim.connect() as peer:
        first = produce(peer, victim.topic, bytes(bomb))
        assert first.error_code == 0
        with Bystander(victim) as other:
            for _ in range(5):
                answer = ask(peer, question, 6)
        assert isinstance(answer, ListOffsetsResponse)
        assert 0 <= answer.topics[0].partitions[0].offset <= first.base_offset
    assert other.worst_s < BYSTANDER_S_MAX
    victim.check()


def test_garbage_is_refused_where_the_framing_is_checked(victim: Victim):
    garbage = batch(Codec.NONE, b"these bytes are no records, and nobody could read past them", 3)
    with victim.connect() as peer:
        assert produce(peer, victim.topic, bytes(garbage)).error_code == 0, "by default only the header is checked"
        victim.set_cluster("barnabas.record.framing.check", "true")
        victim.admin.wait(
            lambda: produce(peer, victim.topic, bytes(garbage)).error_code == ErrorCode.INVALID_RECORD, "the setting"
        )
        for codec in Codec:
            honest = BatchBuilder(codec=codec)
            for number in range(100):
                honest.append(b"k", b"%d" % number, timestamp=1, headers=[("h", b"v")])
            assert produce(peer, victim.topic, honest.build()).error_code == 0
            lie = bytearray(honest.build())
            struct.pack_into(">i", lie, LAST_OFFSET_DELTA_AT, 98)
            struct.pack_into(">i", lie, RECORD_COUNT_AT, 99)
            struct.pack_into(">I", lie, CRC_AT, compute_crc(lie, 0, len(lie) - 12))
            assert produce(peer, victim.topic, bytes(lie)).error_code == ErrorCode.INVALID_RECORD
        victim.set_cluster("barnabas.record.framing.check", "false")


def with_longer_string(request: ApiMessage, version: int) -> bytes:
    """Return the request with a string of 40,000 bytes instead of 300, which our writer would refuse."""
    short, long = bytearray(), bytearray()
    for text, size in ((short, 300), (long, 40_000)):
        append_uvarint(text, size + 1)
        text += b"G" * size
    framed = frame.encode_request(request, version, 1, "hostile")
    assert framed.count(short) == 1
    body = framed[4:].replace(short, long)
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (
            JoinGroupRequest(
                group_id="G" * 300,
                session_timeout_ms=6_000,
                rebalance_timeout_ms=6_000,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
            ),
            9,
        ),
        (
            AlterUserScramCredentialsRequest(
                upsertions=[
                    ScramCredentialUpsertion(
                        name="G" * 300, mechanism=1, iterations=4096, salt=b"salt", salted_password=b"password"
                    )
                ]
            ),
            0,
        ),
    ],
    ids=["JoinGroup", "AlterUserScramCredentials"],
)
def test_string_that_no_client_could_read_in_an_answer_ends_the_connection(
    victim: Victim, request_: ApiMessage, version: int
):
    """Kafka does the same. Java's AdminClient would fail at the next listing of groups or users."""
    with victim.connect() as peer:
        peer.sendall(with_longer_string(request_, version))
        assert is_closed(peer)
    with victim.connect() as peer:
        groups = ask(peer, ListGroupsRequest(), 4)
        assert isinstance(groups, ListGroupsResponse) and groups.error_code == 0
        assert all(len(group.group_id) < 300 for group in groups.groups)
        users = ask(peer, DescribeUserScramCredentialsRequest(users=None), 0)
        assert isinstance(users, DescribeUserScramCredentialsResponse) and users.results == []
    victim.check()
