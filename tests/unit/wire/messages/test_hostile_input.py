"""Whatever arrives, a reader raises `Malformed` or reads it, without other failures or excessive memory."""

import contextlib
import random
import tracemalloc
from collections.abc import Callable

import pytest

from barnabas.base.errors import Malformed
from barnabas.wire import codec_write
from barnabas.wire.codec import Unwritable, decode, encode, reader
from barnabas.wire.codec_source import present_fields
from barnabas.wire.frame import parse_request_header
from barnabas.wire.messages.base import Versioned
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.fetch import FetchRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorResponse
from barnabas.wire.messages.join_group import JoinGroupRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse
from barnabas.wire.messages.produce import ProduceRequest
from tests.unit.wire.messages.message_samples import every_class, random_message

CLASSES = every_class()

#: Varints and fixed-size integers that claim the largest sizes.
HUGE = (b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\x7f\xff", b"\xff\xff\xff\x7f", b"\x80\x00\x00\x00")


def survive(cls: type[Versioned], data: bytes, version: int) -> None:
    try:
        decode(cls, data, version)
    except Malformed as error:
        assert str(error)


def versions_of(cls: type[Versioned]) -> list[int]:
    """The oldest, the last before flexible ones, the first flexible one, the newest."""
    borders = {cls.MIN_VERSION, cls.FLEXIBLE_FROM - 1, cls.FLEXIBLE_FROM, cls.MAX_VERSION}
    return sorted(version for version in borders if cls.MIN_VERSION <= version <= cls.MAX_VERSION)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_damaged_message_is_malformed_or_another_message(cls: type[Versioned]) -> None:
    for version in versions_of(cls):
        chance = random.Random(f"{cls.__name__} {version}")
        for _ in range(6):
            raw = bytearray(encode(random_message(chance, cls, version), version)[:2000])
            survive(cls, bytes(raw[: chance.randrange(len(raw) + 1)]), version)
            for huge in HUGE:
                at = chance.randrange(len(raw) + 1)
                survive(cls, bytes(raw[:at]) + huge + bytes(raw[at + len(huge) :]), version)
            for _ in range(8):
                flipped = bytearray(raw)
                for _ in range(chance.choice((1, 1, 3))):
                    if flipped:
                        flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
                survive(cls, bytes(flipped), version)
            survive(cls, chance.randbytes(chance.randrange(200)), version)


@pytest.mark.parametrize(
    ("cls", "version"), [(MetadataResponse, 12), (MetadataRequest, 8), (ProduceRequest, 9), (FetchRequest, 17)]
)
def test_memory_stays_in_proportion_to_the_input(cls: type[Versioned], version: int) -> None:
    read = reader(cls, version)
    chance = random.Random(version)
    for _ in range(20):  # the code is compiled before we measure, for tagged fields too
        raw = encode(random_message(chance, cls, version), version)
        read(raw, 0, len(raw))
    tracemalloc.start()
    try:
        for _ in range(200):
            raw = bytearray(encode(random_message(chance, cls, version), version)[:500])
            at = chance.randrange(len(raw) + 1)
            data = bytes(raw[:at]) + chance.choice(HUGE) + bytes(raw[at:])
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            with contextlib.suppress(Malformed):
                read(data, 0, len(data))
            _, peak = tracemalloc.get_traced_memory()
            # An object takes a few hundred bytes, and at least two bytes of the input.
            assert peak - before < 20_000 + 300 * len(data)
    finally:
        tracemalloc.stop()


def test_array_of_the_smallest_elements_costs_no_more_than_its_bytes_allow() -> None:
    # A MetadataRequest v4 that claims a million topics, followed by a megabyte of zeros: each topic is two of them.
    data = (1_000_000).to_bytes(4) + bytes(1_000_000)
    with pytest.raises(Malformed, match=r"MetadataRequest\.topics: claims 1000000"):
        decode(MetadataRequest, data, 4)


@pytest.mark.parametrize("cls", [ProduceRequest, FetchRequest])
def test_random_bytes_at_any_version(cls: type[Versioned]) -> None:
    chance = random.Random(7)
    for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
        for _ in range(200):
            survive(cls, chance.randbytes(chance.randrange(100)), version)


def test_random_headers_are_malformed_or_headers() -> None:
    chance = random.Random(11)
    for _ in range(5000):
        data = bytes([0, chance.randrange(100), 0, chance.randrange(20)]) + chance.randbytes(chance.randrange(40))
        try:
            header = parse_request_header(data)
        except Malformed as error:
            assert str(error)
        else:
            assert 8 <= header.body_offset <= len(data)


def string_fields(cls: type[Versioned], version: int) -> list[tuple[str, bool]]:
    """The names of the class's own strings in the version, and whether each is a list of them."""
    plain, tagged, _ = present_fields(cls, version)
    return [(name, spec.is_array) for name, spec in plain + tagged if spec.type == "string"]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_string_of_more_than_32767_bytes_is_malformed(
    cls: type[Versioned], longer_strings: Callable[[Versioned, int], bytes]
) -> None:
    """As in Kafka: in a flexible version there would be room for more."""
    version = cls.MAX_VERSION
    chance = random.Random(cls.__name__)
    for name, is_list in string_fields(cls, version) if version >= cls.FLEXIBLE_FROM else []:
        message = random_message(chance, cls, version)
        for text in ("x" * 0x7FFF, "ä" * 0x3FFF):
            setattr(message, name, ["a", text] if is_list else text)
            assert decode(cls, encode(message, version), version) == message
        for text in ("x" * 0x8000, "ä" * 0x4000):
            setattr(message, name, ["a", text] if is_list else text)
            with pytest.raises(Malformed, match=f"{name}.*a string of 32768 bytes"):
                decode(cls, longer_strings(message, version), version)


@pytest.fixture
def longer_strings(monkeypatch: pytest.MonkeyPatch) -> Callable[[Versioned, int], bytes]:
    """Writes messages that the shipped writer refuses."""

    def write(message: Versioned, version: int) -> bytes:
        with monkeypatch.context() as patch:
            patch.setattr(codec_write, "STRING_BYTES_MAX", 1 << 20)
            patch.setattr(codec_write, "_compiled", {})
            out = bytearray()
            codec_write.compile_writer(type(message), version, True)(message, out)
            return bytes(out)

    return write


def test_string_that_no_client_reads_is_not_written() -> None:
    for version in (JoinGroupRequest.MIN_VERSION, JoinGroupRequest.MAX_VERSION):
        with pytest.raises(Unwritable, match="32767 is the limit"):
            encode(JoinGroupRequest(group_id="x" * 40_000), version)
    with pytest.raises(Unwritable, match="32767 is the limit"):
        encode(DescribeGroupsRequest(groups=["x" * 40_000]), DescribeGroupsRequest.MAX_VERSION)


def test_error_message_is_cut_to_the_length_that_clients_read() -> None:
    """It may repeat the longest name that a client can send, with words around it."""
    for version in (2, FindCoordinatorResponse.FLEXIBLE_FROM):
        answer = FindCoordinatorResponse(error_message="ä" * 20_000)
        written = encode(answer, version)
        assert decode(FindCoordinatorResponse, written, version).error_message == "ä" * (0x7FFF // 2)
