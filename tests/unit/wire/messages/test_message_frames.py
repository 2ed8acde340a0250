import random
import struct

import pytest

from barnabas.base.errors import Malformed
from barnabas.wire.codec import RecordsRef, decode, encode
from barnabas.wire.frame import (
    RequestHeader,
    encode_request,
    encode_response,
    parse_request_header,
    parse_response_header,
    response_head,
    response_writer,
)
from barnabas.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from barnabas.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.unit.wire.messages.message_samples import every_class, every_version, random_message


def test_request_header_of_an_old_version_is_these_bytes() -> None:
    frame = encode_request(FetchRequest(), 11, 77, "me")
    assert frame[:4] == struct.pack(">i", len(frame) - 4)
    assert frame[4:16] == b"\0\x01\0\x0b\0\0\0\x4d\0\x02me"
    assert frame[16:] == encode(FetchRequest(), 11)


def test_request_header_of_a_flexible_version_ends_with_tagged_fields_but_keeps_the_old_client_id() -> None:
    frame = encode_request(FetchRequest(), 12, 77, "me")
    assert frame[4:17] == b"\0\x01\0\x0c\0\0\0\x4d\0\x02me\0"
    assert frame[17:] == encode(FetchRequest(), 12)


def test_controlled_shutdown_version_0_has_no_client_id() -> None:
    frame = encode_request(ControlledShutdownRequest(broker_id=5), 0, 77, "me")
    assert frame[4:] == b"\0\x07\0\0\0\0\0\x4d\0\0\0\x05"
    header = parse_request_header(frame, 4)
    assert header == RequestHeader(7, 0, 77, None, 12)
    assert decode(ControlledShutdownRequest, frame, 0, header.body_offset).broker_id == 5


@pytest.mark.parametrize("client_id", [None, "", "client-7", "고객"])
@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (ApiVersionsRequest(), 0),
        (ApiVersionsRequest(client_software_name="x"), 3),
        (MetadataRequest(), 8),
        (MetadataRequest(), 9),
        (ControlledShutdownRequest(), 1),
        (ControlledShutdownRequest(), 3),
    ],
)
def test_header_parses_back_and_points_at_the_message(
    request_: ApiMessage, version: int, client_id: str | None
) -> None:
    frame = b"..." + encode_request(request_, version, -5, client_id)
    header = parse_request_header(memoryview(frame), 7)
    assert header[:4] == (request_.API_KEY, version, -5, client_id)
    assert decode(type(request_), frame, version, header.body_offset) == request_


def test_unknown_tagged_fields_of_a_header_are_skipped() -> None:
    plain = encode_request(MetadataRequest(), 9, 1, "me")[4:]
    tagged = plain[:12] + b"\x01\x07\x02zz" + plain[13:]
    assert parse_request_header(tagged).body_offset == 17


def test_api_versions_of_the_future_still_has_a_header() -> None:
    # KIP-511: the broker answers in version 0 with the versions that it has.
    frame = encode_request(ApiVersionsRequest(), 4, 9, "me")[4:]
    header = parse_request_header(frame[:2] + b"\0\x63" + frame[4:])
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (18, 99, 9, "me")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\x01\0\x0b\0\0\0",
        b"\0\x07\0\x01\0\0\0\x05\0",  # ControlledShutdown v1, one byte of the length
        b"\0\x01\0\x0b\0\0\0\x05\0\x05ab",  # the client id claims more than there is
        b"\0\x01\0\x0b\0\0\0\x05\0\x02\xff\xff",  # not UTF-8
        b"\0\x01\0\x0c\0\0\0\x05\0\x02ab",  # no tagged fields
        b"\0\x01\0\x0c\0\0\0\x05\0\x02ab\xff\xff\xff\xff\x0f",
    ],
)
def test_header_that_is_not_one_is_malformed(raw: bytes) -> None:
    with pytest.raises(Malformed, match="request header"):
        parse_request_header(raw)


def test_unknown_api_key_is_malformed() -> None:
    with pytest.raises(Malformed, match="unknown API key 999"):
        parse_request_header(struct.pack(">hhih", 999, 0, 1, -1))


def test_header_is_not_read_past_the_end_given() -> None:
    frame = encode_request(MetadataRequest(), 9, 1, "me")[4:]
    with pytest.raises(Malformed):
        parse_request_header(frame, 0, 11)


@pytest.mark.parametrize(
    ("response", "version", "head"),
    [
        (MetadataResponse(), 8, b"\0\0\0\x07"),
        (MetadataResponse(), 9, b"\0\0\0\x07\0"),
        (ApiVersionsResponse(), 0, b"\0\0\0\x07"),
        (ApiVersionsResponse(), 3, b"\0\0\0\x07"),  # always the oldest header
        (ControlledShutdownResponse(), 0, b"\0\0\0\x07"),
        (ControlledShutdownResponse(), 3, b"\0\0\0\x07\0"),
    ],
)
def test_response_frame_is_size_header_and_message(response: ApiMessage, version: int, head: bytes) -> None:
    frame = encode_response(response, version, 7)
    assert frame == struct.pack(">i", len(frame) - 4) + head + encode(response, version)
    assert response_head(response.API_KEY, version, 7) == head
    assert parse_response_header(response.API_KEY, version, frame, 4) == (7, 4 + len(head))


RESPONSES = [cls for cls in every_class() if issubclass(cls, ApiMessage) and cls.__name__.endswith("Response")]


@pytest.mark.parametrize("response", RESPONSES, ids=lambda cls: cls.__name__)
def test_frame_of_any_response_has_the_bytes_of_the_message(response: type[ApiMessage]) -> None:
    chance = random.Random(response.__name__)
    for cls, version in every_version([response]):
        for _ in range(5):
            message = random_message(chance, response, version)
            expected = response_head(response.API_KEY, version, 7) + encode(message, version)
            frame = encode_response(message, version, 7)
            assert frame == struct.pack(">i", len(expected)) + expected, (cls, version)


@pytest.mark.parametrize("raw", [b"\0\0", b"\0\0\0\x07", b"\0\0\0\x07\x01"])
def test_response_header_cut_short_is_malformed(raw: bytes) -> None:
    with pytest.raises(Malformed):
        parse_response_header(3, 9, raw)


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_size_of_a_response_in_parts_counts_what_the_refs_stand_for(version: int) -> None:
    def response(records: list[object]) -> FetchResponse:
        partitions = [PartitionData(partition_index=at, records=each) for at, each in enumerate(records)]  # type: ignore[arg-type]
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])

    parts = response_writer(FetchResponse, version)(response([RecordsRef(3, b"abc"), RecordsRef(200, b"d" * 200)]), 7)
    joined = b"".join(part.payload if isinstance(part, RecordsRef) else part for part in parts)  # type: ignore[misc]
    assert joined == encode_response(response([b"abc", b"d" * 200]), version, 7)
