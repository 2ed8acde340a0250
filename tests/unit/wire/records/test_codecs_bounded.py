"""The five codecs: round trips, Kafka's framings, levels, bounds, damage."""

import gzip
import struct
import time

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.base.errors import Malformed
from barnabas.wire.compression import LEVELS, XERIAL_MAGIC, Codec, check_level, compress, decompress, xxh32

COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]
SAMPLES = [b"", b"a", b"hello " * 30_000, bytes(range(256)) * 700, bytes(1_000_000)]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("sample", SAMPLES, ids=len)
def test_round_trip_and_exact_bound(codec: Codec, sample: bytes):
    packed = compress(codec, sample)
    assert decompress(codec, packed) == sample
    assert decompress(codec, memoryview(packed), max_bytes=len(sample)) == sample
    if sample:
        with pytest.raises(Malformed, match="larger than the limit"):
            decompress(codec, packed, max_bytes=len(sample) - 1)


@given(data=st.binary(max_size=5_000), codec=st.sampled_from(list(Codec)))
@settings(deadline=None, max_examples=60)
def test_any_bytes_round_trip(data: bytes, codec: Codec):
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", list(LEVELS))
def test_every_level_of_a_codec_is_readable(codec: Codec):
    lowest, highest, default = LEVELS[codec]
    sample = b"the quick brown fox " * 5_000
    for level in {lowest, max(lowest, 1), highest, default}:
        check_level(codec, level)
        assert decompress(codec, compress(codec, sample, level)) == sample
    for level in (lowest - 1, highest + 1):
        if level != default:
            with pytest.raises(ValueError, match="doesn't support given compression level"):
                check_level(codec, level)


def test_codec_without_levels_says_so():
    with pytest.raises(ValueError, match="snappy has no compression levels"):
        check_level(Codec.SNAPPY, 1)


def test_labels_are_those_of_compression_type():
    assert [codec.label for codec in Codec] == ["none", "gzip", "snappy", "lz4", "zstd"]


def test_snappy_is_written_in_xerial_chunks_of_32_kb():
    packed = compress(Codec.SNAPPY, bytes(70_000))
    assert packed.startswith(XERIAL_MAGIC + struct.pack(">ii", 1, 1))
    at, sizes = 16, []
    while at < len(packed):
        (size,) = struct.unpack_from(">i", packed, at)
        sizes.append(cramjam.snappy.decompress_raw_len(packed[at + 4 : at + 4 + size]))
        at += 4 + size
    assert sizes == [32_768, 32_768, 4_464]


def test_snappy_is_read_raw_and_as_streams_one_after_the_other():
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"plain"))) == b"plain"
    twice = compress(Codec.SNAPPY, b"one") + compress(Codec.SNAPPY, b"two")
    assert decompress(Codec.SNAPPY, twice) == b"onetwo"


def test_lz4_frame_is_the_one_kafka_writes():
    packed = compress(Codec.LZ4, bytes(200_000))
    # magic, independent blocks without checksums, 64 KB, header checksum
    assert packed[:7] == bytes.fromhex("04224d18604082")
    assert packed[-4:] == bytes(4)
    assert bytes(cramjam.lz4.decompress(packed)) == bytes(200_000)


def test_lz4_block_that_does_not_shrink_is_stored():
    noise = bytes((i * 7919 + (i >> 3) * 104729) & 0xFF for i in range(300))
    packed = compress(Codec.LZ4, noise[:3])
    assert struct.unpack_from("<I", packed, 7)[0] == 0x80000003


@pytest.mark.parametrize(
    ("at", "byte", "why"),
    [
        (0, 0, "wrong magic"),
        (4, 0x40, "dependent blocks"),
        (4, 0xA0, "version 2"),
        (5, 0x30, "unknown block size 3"),
        (6, 0, "descriptor is corrupt"),
    ],
)
def test_lz4_frames_that_kafka_refuses_are_refused(at: int, byte: int, why: str):
    packed = bytearray(compress(Codec.LZ4, b"data"))
    packed[at] = byte
    with pytest.raises(Malformed, match=why):
        decompress(Codec.LZ4, packed)


def test_lz4_frame_with_block_checksums_and_content_size_is_read():
    block = bytes(cramjam.lz4.compress_block(b"x" * 100, store_size=False))
    descriptor = bytes([0x78, 0x40]) + struct.pack("<Q", 100)
    checksum = bytes([xxh32(descriptor) >> 8 & 0xFF])
    frame = b"\x04\x22\x4d\x18" + descriptor + checksum
    frame += struct.pack("<I", len(block)) + block + b"\0\0\0\0" + bytes(4)
    assert decompress(Codec.LZ4, frame) == b"x" * 100
    assert xxh32(b"\x60\x40") >> 8 & 0xFF == 0x82
    assert xxh32(b"") == 0x02CC5D05
    with pytest.raises(ValueError, match="frame descriptors"):
        xxh32(bytes(16))


def test_gzip_members_one_after_the_other_are_read_as_one():
    packed = gzip.compress(b"one") + gzip.compress(b"two") + bytes(8)
    assert decompress(Codec.GZIP, packed) == b"onetwo"


def test_many_tiny_gzip_members_take_no_square_time():
    member = gzip.compress(b"x")
    packed = member * 20_000
    started = time.process_time()
    assert decompress(Codec.GZIP, packed) == b"x" * 20_000
    assert time.process_time() - started < 5  # 0.1 s; with square time it would be minutes
    with pytest.raises(Malformed, match="ends early"):
        decompress(Codec.GZIP, packed[:-1])
    with pytest.raises(Malformed, match="corrupt"):
        decompress(Codec.GZIP, packed + b"more")


def test_zstd_frames_one_after_the_other_and_skippable_ones():
    skippable = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    packed = compress(Codec.ZSTD, b"one") + skippable + compress(Codec.ZSTD, b"two")
    assert decompress(Codec.ZSTD, packed) == b"onetwo"


def test_zstd_bomb_is_refused_without_making_it():
    bomb = compress(Codec.ZSTD, bytes(50_000_000))
    assert len(bomb) < 5_000
    with pytest.raises(Malformed, match="larger than the limit of 1000 bytes"):
        decompress(Codec.ZSTD, bomb, max_bytes=1_000)


def test_unknown_codec_is_malformed():
    with pytest.raises(Malformed, match="unknown compression type 7"):
        decompress(7, b"data")


@given(codec=st.sampled_from(COMPRESSING), data=st.binary(max_size=200))
@settings(deadline=None, max_examples=200)
def test_garbage_raises_nothing_but_malformed(codec: Codec, data: bytes):
    try:
        decompress(codec, data, max_bytes=100_000)
    except Malformed:
        return


@given(codec=st.sampled_from(COMPRESSING), at=st.integers(0, 10**6), mask=st.integers(1, 255), cut=st.booleans())
@settings(deadline=None, max_examples=300)
def test_damage_raises_nothing_but_malformed(codec: Codec, at: int, mask: int, cut: bool):
    packed = bytearray(compress(codec, b"some words that repeat, some words that do not " * 20))
    at %= len(packed)
    packed[at] ^= mask
    if cut:
        del packed[at:]
    try:
        assert len(decompress(codec, packed, max_bytes=100_000)) <= 100_000
    except Malformed:
        return
