"""Varints: the one reader and the one writer of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.base.errors import Malformed
from barnabas.wire.varint import append_uvarint, encode_varint, read_uvarint, read_varint, read_varlong

READERS = (read_uvarint, read_varint, read_varlong)


def unsigned(value: int) -> bytes:
    out = bytearray(b"before")
    append_uvarint(out, value)
    return bytes(out[6:])


@given(st.integers(0, 2**32 - 1))
def test_unsigned_varint_survives_a_round_trip(value: int) -> None:
    raw = unsigned(value)
    assert read_uvarint(b"xx" + raw, 2, 2 + len(raw)) == (value, 2 + len(raw))
    assert read_uvarint(bytearray(raw), 0) == (value, len(raw))


@given(st.integers(-(2**63), 2**63 - 1))
def test_zigzag_varints_come_back(value: int) -> None:
    raw = encode_varint(value)
    assert read_varlong(memoryview(b"\xff" + raw), 1) == (value, 1 + len(raw))
    if -(2**31) <= value < 2**31:
        assert read_varint(raw, 0, len(raw)) == (value, len(raw))


@pytest.mark.parametrize(
    ("value", "raw"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")],
)
def test_unsigned_varints_are_the_documented_bytes(value: int, raw: str) -> None:
    assert unsigned(value).hex() == raw


@pytest.mark.parametrize(
    ("value", "raw"),
    [(0, "00"), (-1, "01"), (1, "02"), (-2, "03"), (-(2**31), "ffffffff0f"), (8191, "fe7f"), (8192, "808001")],
)
def test_zigzag_varints_are_the_documented_bytes(value: int, raw: str) -> None:
    assert encode_varint(value).hex() == raw


@pytest.mark.parametrize("raw", ["", "80", "ffffff"])
def test_varint_cut_short_is_malformed(raw: str) -> None:
    data = bytes.fromhex(raw)
    for read in READERS:
        with pytest.raises(Malformed, match=f"why: varint cut short at byte {len(data)}"):
            read(data, 0, what="why")
        with pytest.raises(Malformed, match=f"cut short at byte {len(data)}"):
            read(data + b"\1", 0, len(data))


def test_varint_that_does_not_end_is_malformed() -> None:
    for read, size in ((read_uvarint, 5), (read_varint, 5), (read_varlong, 10)):
        for data in (b"\x80" * size, b"\xff" * size + b"\1"):
            with pytest.raises(Malformed, match=f"longer than {size} bytes"):
                read(data, 0)


@pytest.mark.parametrize(("raw", "value"), [("ffffffff7f", 2**32 - 1), ("8080808010", 0), ("8180808070", 1)])
def test_bits_beyond_the_type_are_dropped_as_kafkas_readers_do(raw: str, value: int) -> None:
    """Both sides of a connection must read the same number: a side that refused it would lose a record that the other has."""
    data = bytes.fromhex(raw)
    assert read_uvarint(data, 0) == (value, 5)
    assert read_varint(data, 0) == ((value >> 1) ^ -(value & 1), 5)


def test_bits_beyond_a_varlong_are_dropped() -> None:
    assert read_varlong(b"\x80" * 9 + b"\x7e", 0) == (0, 10)
    assert read_varlong(b"\xff" * 9 + b"\x7f", 0) == (-(2**63), 10)


def test_negative_number_is_not_an_unsigned_varint() -> None:
    with pytest.raises(ValueError, match="negative"):
        unsigned(-1)
