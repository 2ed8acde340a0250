import pytest

from barnabas.base.errors import Malformed
from barnabas.wire import wire


@pytest.mark.parametrize(("text", "raw"), [(None, "ffff"), ("", "0000"), ("abc", "0003616263"), ("한", "0003ed959c")])
def test_string_has_a_16_bit_length(text: str | None, raw: str) -> None:
    out = bytearray()
    wire.append_string(out, text)
    assert out.hex() == raw


def test_unknown_tagged_fields_are_skipped() -> None:
    section = bytes([2, 0, 1, 0xAA, 5, 2, 0xBB, 0xCC])
    assert wire.skip_tagged_fields(section + b"rest", 0, 12) == len(section)
    assert wire.skip_tagged_fields(b"\0", 0, 1) == 1


@pytest.mark.parametrize("raw", ["", "01", "0100", "010005aa", "02050005 00".replace(" ", ""), "0205000400"])
def test_tagged_fields_cut_short_repeated_or_descending_are_malformed(raw: str) -> None:
    data = bytes.fromhex(raw)
    with pytest.raises(Malformed):
        wire.skip_tagged_fields(data, 0, len(data))
