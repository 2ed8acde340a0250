import pytest

from barnabas.core.errors import Malformed
from barnabas.protocol import wire


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
