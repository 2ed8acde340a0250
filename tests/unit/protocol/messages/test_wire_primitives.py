import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.core.errors import Malformed
from barnabas.protocol import wire


@given(st.integers(0, 2**32 - 1))
def test_unsigned_varint_comes_back_and_takes_the_size_foretold(value: int) -> None:
    out = bytearray(b"before")
    wire.append_uvarint(out, value)
    assert wire.read_uvarint(out, 6, len(out)) == (value, len(out))
    assert wire.uvarint_size(value) == len(out) - 6


@given(st.integers(0, 2**64 - 1))
def test_unsigned_varlong_comes_back(value: int) -> None:
    out = bytearray()
    wire.append_uvarint(out, value)
    assert wire.read_uvarlong(out, 0, len(out)) == (value, len(out))


@given(st.integers(-(2**31), 2**31 - 1))
def test_zigzag_varint_comes_back_and_takes_the_size_foretold(value: int) -> None:
    out = bytearray()
    wire.append_varint(out, value)
    assert wire.read_varint(out, 0, len(out)) == (value, len(out))
    assert wire.varint_size(value) == len(out)


@given(st.integers(-(2**63), 2**63 - 1))
def test_zigzag_varlong_comes_back(value: int) -> None:
    out = bytearray()
    wire.append_varint(out, value)
    assert wire.read_varlong(memoryview(out), 0, len(out)) == (value, len(out))


@pytest.mark.parametrize(
    ("value", "raw"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")],
)
def test_unsigned_varints_are_the_documented_bytes(value: int, raw: str) -> None:
    out = bytearray()
    wire.append_uvarint(out, value)
    assert out.hex() == raw


@pytest.mark.parametrize(("value", "raw"), [(0, "00"), (-1, "01"), (1, "02"), (-2, "03"), (-(2**31), "ffffffff0f")])
def test_zigzag_varints_are_the_documented_bytes(value: int, raw: str) -> None:
    out = bytearray()
    wire.append_varint(out, value)
    assert out.hex() == raw


@pytest.mark.parametrize("raw", ["", "80", "ffffff", "ffffffff80", "ffffffff10", "ffffffffff01"])
def test_varint_cut_short_or_too_long_or_too_large_is_malformed(raw: str) -> None:
    data = bytes.fromhex(raw)
    with pytest.raises(Malformed):
        wire.read_uvarint(data, 0, len(data))


def test_varint_is_not_read_past_the_end_given() -> None:
    with pytest.raises(Malformed, match="cut short"):
        wire.read_uvarint(b"\x80\x01", 0, 1)


def test_negative_number_is_no_unsigned_varint() -> None:
    with pytest.raises(ValueError, match="negative"):
        wire.append_uvarint(bytearray(), -1)


@pytest.mark.parametrize("text", [None, "", "abc", "한국어", "x" * 200])
def test_strings_come_back_in_both_forms(text: str | None) -> None:
    out = bytearray()
    wire.append_string(out, text)
    assert wire.read_string(out, 0, len(out)) == (text, len(out))
    out = bytearray()
    wire.append_compact_string(out, text)
    assert wire.read_compact_string(memoryview(out), 0, len(out)) == (text, len(out))


@pytest.mark.parametrize("data", [None, b"", b"abc", bytes(300)])
def test_compact_bytes_come_back(data: bytes | None) -> None:
    out = bytearray()
    wire.append_compact_bytes(out, data)
    assert wire.read_compact_bytes(out, 0, len(out)) == (data, len(out))


def test_old_bytes_have_a_32_bit_length() -> None:
    out = bytearray()
    wire.append_bytes(out, b"ab")
    wire.append_bytes(out, None)
    assert out == b"\0\0\0\2ab\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("read", "raw"),
    [
        (wire.read_string, "00"),
        (wire.read_string, "000361"),
        (wire.read_string, "0001ff"),
        (wire.read_compact_string, "0461"),
        (wire.read_compact_string, "02c3"),
        (wire.read_compact_bytes, "0461"),
    ],
)
def test_string_that_claims_too_much_or_is_not_utf8_is_malformed(read, raw: str) -> None:  # type: ignore[no-untyped-def]
    data = bytes.fromhex(raw)
    with pytest.raises(Malformed, match="client"):
        read(data, 0, len(data), "client")


def test_unknown_tagged_fields_are_skipped() -> None:
    section = bytes([2, 0, 1, 0xAA, 5, 2, 0xBB, 0xCC])
    assert wire.skip_tagged_fields(section + b"rest", 0, 12) == len(section)
    assert wire.skip_tagged_fields(b"\0", 0, 1) == 1


@pytest.mark.parametrize("raw", ["", "01", "0100", "010005aa", "02050005 00".replace(" ", ""), "0205000400"])
def test_tagged_fields_cut_short_repeated_or_descending_are_malformed(raw: str) -> None:
    data = bytes.fromhex(raw)
    with pytest.raises(Malformed):
        wire.skip_tagged_fields(data, 0, len(data))
