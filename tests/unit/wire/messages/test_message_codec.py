import copy
import pickle

import pytest

from barnabas.base.errors import Malformed
from barnabas.wire.codec import (
    RecordsRef,
    Unwritable,
    decode,
    decode_versioned,
    encode,
    encode_versioned,
    reader,
    writer,
)
from barnabas.wire.frame import response_head, response_writer
from barnabas.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from barnabas.wire.messages.consumer_group_heartbeat import Assignment, ConsumerGroupHeartbeatResponse
from barnabas.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from barnabas.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData


def test_message_has_the_defaults_of_its_schema() -> None:
    request = FetchRequest()
    assert (request.replica_id, request.max_bytes, request.session_epoch) == (-1, 0x7FFFFFFF, -1)
    assert (request.cluster_id, request.replica_state, request.topics, request.rack_id) == (None, None, [], "")
    assert FetchRequest().topics is not request.topics


def test_message_refuses_a_field_that_it_does_not_have() -> None:
    with pytest.raises(TypeError):
        FetchRequest(max_wait=3)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        FetchRequest().max_wait = 3  # type: ignore[attr-defined]


def test_messages_are_equal_by_value_and_can_be_copied_and_changed() -> None:
    one = FetchTopic(topic="t", partitions=[FetchPartition(partition=1)])
    assert one == FetchTopic(topic="t", partitions=[FetchPartition(partition=1)])
    assert one != FetchTopic(topic="t", partitions=[FetchPartition(partition=2)])
    assert one != "t"
    assert one.replace(topic="u").topic == "u"
    assert copy.deepcopy(one) == one
    assert pickle.loads(pickle.dumps(one)) == one
    assert repr(FetchPartition(partition=7)).startswith("FetchPartition(partition=7, current_leader_epoch=-1")


def test_field_that_the_version_lacks_is_left_out_and_reads_as_its_default() -> None:
    sent = FetchRequest(session_id=9, rack_id="r1", max_wait_ms=500)
    assert decode(FetchRequest, encode(sent, 4), 4) == FetchRequest(max_wait_ms=500)
    assert decode(FetchRequest, encode(sent, 11), 11) == sent


def test_null_in_a_version_without_null_is_unwritable() -> None:
    with pytest.raises(Unwritable, match=r"MetadataRequest\.topics"):
        encode(MetadataRequest(topics=None), 0)
    assert decode(MetadataRequest, encode(MetadataRequest(topics=None), 1), 1).topics is None
    with pytest.raises(Unwritable, match=r"FetchRequest\.rack_id"):
        encode(FetchRequest(rack_id=None), 11)  # type: ignore[arg-type]


def test_number_out_of_range_is_unwritable_and_the_message_says_where() -> None:
    with pytest.raises(Unwritable, match="FetchPartition v12"):
        encode(FetchRequest(topics=[FetchTopic(partitions=[FetchPartition(partition=2**31)])]), 12)


def test_text_that_utf8_cannot_encode_is_unwritable() -> None:
    for topic in (MetadataRequestTopic(name="\ud800"), MetadataRequestTopic(name="a\udcff")):
        with pytest.raises(Unwritable, match=r"MetadataRequestTopic v12: .*surrogates"):
            encode(MetadataRequest(topics=[topic]), 12)


def test_error_about_a_message_does_not_show_its_passwords() -> None:
    upsertion = ScramCredentialUpsertion(name="a", iterations=2**31, salt=b"salt", salted_password=b"secret")
    with pytest.raises(Unwritable, match="ScramCredentialUpsertion") as raised:
        encode(AlterUserScramCredentialsRequest(upsertions=[upsertion]), 0)
    assert "secret" not in str(raised.value) and raised.value.__cause__ is None


def test_version_that_the_message_does_not_have_is_refused() -> None:
    for version in (-1, 3, 19):
        with pytest.raises(ValueError, match="FetchRequest has versions 4 to 18"):
            reader(FetchRequest, version)
        with pytest.raises(ValueError, match="FetchRequest has versions 4 to 18"):
            writer(FetchRequest, version)


def test_records_are_a_slice_of_the_input_and_not_a_copy() -> None:
    sent = ProduceRequest(
        acks=-1, topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(records=b"0123456789")])]
    )
    frame = bytearray(encode(sent, 9))
    records = decode(ProduceRequest, frame, 9).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    at = frame.index(b"0123456789")
    frame[at] = ord("X")
    assert bytes(records) == b"X123456789"


def test_bytes_left_over_are_malformed_unless_allowed() -> None:
    raw = encode(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
    with pytest.raises(Malformed, match="MetadataRequest v9: 2 bytes left over"):
        decode(MetadataRequest, raw + b"xx", 9)
    assert decode(MetadataRequest, raw + b"xx", 9, allow_trailing=True).topics == [MetadataRequestTopic(name="t")]
    assert decode(MetadataRequest, b"head" + raw, 9, offset=4).topics == [MetadataRequestTopic(name="t")]


@pytest.mark.parametrize("version", [11, 12])
def test_truncation_at_any_byte_is_malformed_and_names_a_field(version: int) -> None:
    request = FetchRequest(topics=[FetchTopic(topic="events", partitions=[FetchPartition(partition=1)])], rack_id="r")
    raw = encode(request, version)
    for size in range(len(raw)):
        with pytest.raises(Malformed, match=r"^Fetch\w+\.\w+"):
            decode(FetchRequest, raw[:size], version)


def test_reader_does_not_look_past_the_end_it_was_given() -> None:
    raw = encode(FetchRequest(rack_id="rack"), 11)
    with pytest.raises(Malformed, match=r"FetchRequest\.rack_id"):
        reader(FetchRequest, 11)(raw, 0, len(raw) - 1)


# Tagged fields


def test_tagged_struct_full_of_defaults_is_not_sent_and_an_absent_one_is_none() -> None:
    assert encode(FetchRequest(replica_state=ReplicaState()), 15) == encode(FetchRequest(), 15)
    assert decode(FetchRequest, encode(FetchRequest(), 15), 15).replica_state is None
    sent = FetchRequest(replica_state=ReplicaState(replica_id=3, replica_epoch=8), cluster_id="c")
    assert decode(FetchRequest, encode(sent, 15), 15) == sent


def with_tags(tags: bytes) -> bytes:
    """A FetchRequest v15 whose section of tagged fields is this."""
    return encode(FetchRequest(), 15)[:-1] + tags


def test_unknown_tag_is_skipped_between_known_ones() -> None:
    cluster = b"\x00\x03\x03ab"
    replica = b"\x01\x0d" + (3).to_bytes(4) + (8).to_bytes(8) + b"\0"
    unknown = b"\x63\x02zz"
    got = decode(FetchRequest, with_tags(b"\x03" + cluster + replica + unknown), 15)
    assert got == FetchRequest(cluster_id="ab", replica_state=ReplicaState(replica_id=3, replica_epoch=8))


@pytest.mark.parametrize(
    "tags",
    [
        b"\x02\x00\x03\x03ab\x00\x03\x03ab",  # twice
        b"\x02\x63\x00\x00\x03\x03ab",  # descending
        b"\x01\x00\x04\x03ab!",  # longer than its value
        b"\x01\x00\x02\x03ab",  # shorter than its value
        b"\x01\x00\x7f\x03ab",  # longer than the message
        b"\x02\x00\x03\x03ab",  # fewer than announced
        b"\xff\xff\xff\xff\x0f",  # four billion
    ],
)
def test_tagged_fields_that_do_not_add_up_are_malformed(tags: bytes) -> None:
    with pytest.raises(Malformed, match="FetchRequest"):
        decode(FetchRequest, with_tags(tags), 15)


def test_nullable_struct_has_a_byte_for_null() -> None:
    empty = ConsumerGroupHeartbeatResponse(member_epoch=1)
    assert encode(empty, 0)[-2:] == b"\xff\0"
    full = ConsumerGroupHeartbeatResponse(member_epoch=1, assignment=Assignment())
    assert encode(full, 0)[-4:] == b"\x01\x01\0\0"
    assert decode(ConsumerGroupHeartbeatResponse, encode(empty, 0), 0) == empty
    assert decode(ConsumerGroupHeartbeatResponse, encode(full, 0), 0) == full


# Parts


def fetch_response(*records: object) -> FetchResponse:
    partitions = [PartitionData(partition_index=at, records=each) for at, each in enumerate(records)]  # type: ignore[arg-type]
    return FetchResponse(session_id=4, responses=[FetchableTopicResponse(topic="t", partitions=partitions)])


@pytest.mark.parametrize("version", range(4, 19))
def test_parts_joined_are_the_whole_message(version: int) -> None:
    data = [b"a" * 10, b"", b"b" * 300, None]
    refs = [RecordsRef(10, data[0]), RecordsRef(0, data[1]), RecordsRef(300, data[2]), None]
    parts = response_writer(FetchResponse, version)(fetch_response(*refs), 7)
    assert [part for part in parts if isinstance(part, RecordsRef)] == refs[:3]
    joined = b"".join(part.payload if isinstance(part, RecordsRef) else part for part in parts)  # type: ignore[misc]
    head = response_head(FetchResponse.API_KEY, version, 7)
    assert joined[4:] == head + encode(fetch_response(*data), version)
    assert int.from_bytes(joined[:4], "big") == len(joined) - 4


def test_parts_of_a_message_without_refs_are_one() -> None:
    (frame,) = response_writer(FetchResponse, 12)(fetch_response(b"inline"), 7)
    assert frame[9:] == encode(fetch_response(b"inline"), 12)  # type: ignore[index]


def test_ref_outside_of_a_response_frame_is_unwritable() -> None:
    with pytest.raises(Unwritable, match="frame of a response"):
        encode(fetch_response(RecordsRef(1, None)), 12)


def test_tags_after_a_ref_stay_after_it() -> None:
    response = fetch_response(RecordsRef(2, None))
    response.responses[0].partitions[0].diverging_epoch = EpochEndOffset(epoch=1, end_offset=5)
    head, ref, tail = response_writer(FetchResponse, 12)(response, 7)
    assert isinstance(head, bytearray)
    assert isinstance(ref, RecordsRef)
    assert isinstance(tail, bytearray)
    assert decode(FetchResponse, head[9:] + b"xy" + tail, 12).responses[0].partitions[0].diverging_epoch is not None


# Versioned records


def test_versioned_record_carries_its_version_in_front() -> None:
    subscription = ConsumerProtocolSubscription(topics=["a"], generation_id=5)
    raw = encode_versioned(subscription, 2)
    assert raw[:2] == b"\0\2"
    assert decode_versioned(ConsumerProtocolSubscription, raw) == (subscription, 2)


def test_subscription_of_a_newer_client_is_read_as_our_newest() -> None:
    raw = b"\0\x09" + encode(ConsumerProtocolSubscription(topics=["a"], rack_id="r"), 3) + b"future"
    got, version = decode_versioned(ConsumerProtocolSubscription, raw, newest_known=True)
    assert (got.topics, got.rack_id, version) == (["a"], "r", 9)
    with pytest.raises(Malformed, match="version 9"):
        decode_versioned(ConsumerProtocolSubscription, raw)


@pytest.mark.parametrize("raw", [b"", b"\0", b"\xff\xff"])
def test_versioned_record_without_a_version_that_we_know_is_malformed(raw: bytes) -> None:
    with pytest.raises(Malformed, match="ConsumerProtocolSubscription"):
        decode_versioned(ConsumerProtocolSubscription, raw, newest_known=True)
