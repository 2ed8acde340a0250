"""Checksums of blocks: what they cover, and what they refuse."""

import random
import struct

import pytest

from barnabas.base.errors import Malformed
from barnabas.broker.features.tiered import layout
from barnabas.broker.features.tiered.blocks import BLOCK_BYTES_MAX, Blocks
from tests.unit.broker.features.tiered.segments import segment
from tests.unit.broker.features.tiered.tier_support import blocks_of_bytes

UUID = bytes(range(16))


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 160, 161, 1005])
def test_whole_blocks_of_any_size_pass_and_come_back_as_they_were_packed(size: int) -> None:
    data = random.Random(size).randbytes(size)
    blocks = blocks_of_bytes(data, UUID, block_bytes=10)
    assert Blocks.decode(blocks.encode()) == blocks
    blocks.check(data, 0)
    for start in range(size):
        first, end = blocks.around(start, start + 1)
        assert first <= start < end <= size
        blocks.check(data[first:end], first)


def test_every_changed_byte_and_every_moved_block_is_noticed() -> None:
    data = random.Random(1).randbytes(105)
    blocks = blocks_of_bytes(data, UUID, block_bytes=10)
    for at in range(len(data)):
        with pytest.raises(Malformed, match=f"bytes from {at // 10 * 10} on"):
            blocks.check(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], 0)
    with pytest.raises(Malformed, match="wrong checksum"):
        blocks.check(data[10:20], 0)
    with pytest.raises(Malformed, match="not whole blocks"):
        blocks.check(data[5:], 5)
    with pytest.raises(Malformed, match="not whole blocks"):
        blocks.check(data[100:] + b"more", 100)
    with pytest.raises(Malformed, match="wrong checksum"):
        blocks.check(data[100:103], 100)


def test_damaged_checksums_are_refused_and_those_of_a_later_version_left_out() -> None:
    packed = blocks_of_bytes(bytes(100), UUID, block_bytes=10).encode()
    for cut in range(len(packed)):
        with pytest.raises(Malformed):
            Blocks.decode(packed[:cut])
    for version, block_bytes, size in ((0, 10, 100), (1, 0, 100), (1, 10, -1), (1, 10, 101), (1, 1 << 31, 1 << 40)):
        with pytest.raises(Malformed):
            Blocks.decode(struct.pack(">hIq16s", version, block_bytes, size, UUID) + packed[30:])
    assert Blocks.decode(struct.pack(">h", 2) + packed[2:]) is None


def test_blocks_that_no_reader_can_hold_are_refused() -> None:
    """An object in the store says how large its blocks are, and a reader fetches whole ones."""
    largest = struct.pack(">hIq16s4s", 1, BLOCK_BYTES_MAX, 100, UUID, bytes(4))
    assert Blocks.decode(largest) is not None
    with pytest.raises(Malformed, match="bytes a block"):
        Blocks.decode(struct.pack(">hIq16s4s", 1, BLOCK_BYTES_MAX + 1, 100, UUID, bytes(4)))


def test_segment_that_is_shorter_than_its_size_has_no_checksums() -> None:
    with pytest.raises(OSError, match="has 100 bytes instead of 101"):
        Blocks.of(lambda size, position: bytes(100)[position : position + size], 101, UUID, block_bytes=10)


def test_indexes_name_the_segment_and_the_size_of_its_records() -> None:
    one = segment(7, 0, 9)
    records = bytes(one.size_bytes)

    def packed(**changed: bytes) -> bytes:
        blocks = blocks_of_bytes(changed.get("records", records), changed.get("uuid", one.id.uuid), block_bytes=10)
        return layout.pack_indexes({layout.Part.BLOCKS: blocks.encode()})

    assert layout.Part.BLOCKS in layout.unpack_indexes_of(one, packed())
    assert layout.unpack_indexes_of(one, layout.pack_indexes({})) == {}, "as copied by earlier versions"
    for wrong in (packed(uuid=UUID), packed(records=records[1:])):
        with pytest.raises(Malformed, match=layout.indexes_key(one)):
            layout.unpack_indexes_of(one, wrong)
