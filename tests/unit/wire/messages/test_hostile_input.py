"""Whatever arrives, a reader raises `Malformed` or reads it, without other failures or excessive memory."""

import contextlib
import random
import tracemalloc

import pytest

from barnabas.base.errors import Malformed
from barnabas.wire.codec import decode, encode, reader
from barnabas.wire.frame import parse_request_header
from barnabas.wire.messages.base import Versioned
from barnabas.wire.messages.fetch import FetchRequest
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
    read = reader(cls, version)  # compiled before we measure
    chance = random.Random(version)
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
