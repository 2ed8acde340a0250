"""The five codecs of record batches, framed as Kafka's Java code frames them, with bounded output.

Decompression never produces more than `max_bytes`: it raises `Malformed` instead, whatever a frame claims.
"""

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final, TypeAlias

import cramjam

from barnabas.base.errors import Malformed

Bytes: TypeAlias = bytes | bytearray | memoryview

#: A batch that exceeds this is an attack. Kafka streams and has no bound; here a decompressed batch is one buffer.
DEFAULT_MAX_DECOMPRESSED_BYTES: Final = 256 * 1024 * 1024


class Codec(IntEnum):
    """`compression.type`, numbered as in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def label(self) -> str:
        """The name in configurations and tools."""
        return self.name.lower()


#: `compression.gzip.level`, `compression.lz4.level`, `compression.zstd.level`: smallest, largest, default.
LEVELS: Final = {Codec.GZIP: (1, 9, -1), Codec.LZ4: (1, 17, 9), Codec.ZSTD: (-131072, 22, 3)}


def check_level(codec: Codec, level: int) -> None:
    """Raise ValueError if the codec does not have the level."""
    if codec not in LEVELS:
        raise ValueError(f"{codec.label} has no compression levels")
    lowest, highest, default = LEVELS[codec]
    if level != default and not lowest <= level <= highest:
        raise ValueError(f"{codec.label} doesn't support given compression level: {level}")


def compress(codec: int, data: Bytes, level: int | None = None) -> bytes:
    """Compress `data` in one block; `level` None means the codec's default."""
    if codec == Codec.NONE:
        return bytes(data)
    return _COMPRESSORS[Codec(codec)](data, level)


def decompress(codec: int, data: Bytes, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES) -> bytes:
    """Return the original data, or raise `Malformed`."""
    if codec == Codec.NONE:
        if len(data) > max_bytes:
            raise TooLarge(max_bytes, data)
        return bytes(data)
    decompressor = _DECOMPRESSORS.get(codec)
    if decompressor is None:
        raise Malformed(f"unknown compression type {codec}")
    try:
        return decompressor(data, max_bytes)
    except (cramjam.DecompressionError, zlib.error, OSError, ValueError, struct.error) as error:
        raise Malformed(f"{Codec(codec).label} data is corrupt: {error}") from None


class TooLarge(Malformed):
    """The data exceeds the limit; `prefix` is its beginning, as far as it was decompressed."""

    def __init__(self, max_bytes: int, prefix: Bytes = b"") -> None:
        super().__init__(f"decompressed data is larger than the limit of {max_bytes} bytes")
        self.prefix = prefix


# -- gzip

_GZIP_WINDOW: Final = 4096


def _gzip_compress(data: Bytes, level: int | None) -> bytes:
    compressor = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
    return compressor.compress(data) + compressor.flush()


def _gzip_decompress(data: Bytes, max_bytes: int) -> bytes:
    """Decompress every member, as Java's GZIPInputStream does; zero padding after the last one is ignored."""
    out = bytearray()
    view = memoryview(data)
    at = 0
    window = len(view)
    while True:
        member = zlib.decompressobj(31)
        while not member.eof:
            piece = view[at : at + window]
            if not piece:
                raise Malformed("gzip data ends early")
            # Allow one byte too many, to distinguish a full buffer from an overflow.
            out += member.decompress(piece, max_bytes - len(out) + 1)
            if len(out) > max_bytes:
                raise TooLarge(max_bytes, out)
            at += len(piece) - len(member.unused_data)
        if at == len(view) or (view[at] == 0 and not any(view[at:])):
            return bytes(out)
        # zlib copies what follows a member. Small windows prevent quadratic time for a batch of many tiny members.
        window = _GZIP_WINDOW


# -- snappy: raw, or in xerial's frame (snappy-java's SnappyOutputStream)

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024


def _snappy_compress(data: Bytes, level: int | None) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    view = memoryview(data)
    for at in range(0, len(view), _XERIAL_BLOCK):
        block = cramjam.snappy.compress_raw(view[at : at + _XERIAL_BLOCK])
        out += struct.pack(">i", len(block))
        out += memoryview(block)
    return bytes(out)


def _snappy_decompress(data: Bytes, max_bytes: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return _snappy_block(view, max_bytes)
    if len(view) < len(_XERIAL_HEADER):
        raise Malformed("snappy data ends in its header")
    out = bytearray()
    at = len(_XERIAL_HEADER)
    while at < len(view):
        if bytes(view[at : at + len(XERIAL_MAGIC)]) == XERIAL_MAGIC:
            at += len(_XERIAL_HEADER)  # as SnappyInputStream, accept several streams in a row
            continue
        (size,) = struct.unpack_from(">i", view, at)
        at += 4
        if size < 0 or at + size > len(view):
            raise Malformed(f"snappy chunk of {size} bytes runs past the end of the data")
        block = view[at : at + size]
        if len(out) + cramjam.snappy.decompress_raw_len(block) > max_bytes:
            raise TooLarge(max_bytes, out)
        out += _snappy_block(block, max_bytes)
        at += size
    return bytes(out)


def _snappy_block(block: memoryview, max_bytes: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > max_bytes:
        raise TooLarge(max_bytes)
    return bytes(cramjam.snappy.decompress_raw(block))


# -- lz4: the frame format, with independent blocks

_LZ4_MAGIC: Final = 0x184D2204
#: Magic; version 1 with independent blocks and no checksums; blocks of 64 KB; the descriptor's checksum.
_LZ4_HEADER: Final = struct.pack("<IBBB", _LZ4_MAGIC, 0x60, 0x40, 0x82)
_LZ4_BLOCK: Final = 64 * 1024
_LZ4_UNCOMPRESSED: Final = 0x80000000
#: liblz4's highest level. Java's levels go to 17, with the same meaning above 12.
_LZ4_LEVEL_MAX: Final = 12


def _lz4_compress(data: Bytes, level: int | None) -> bytes:
    out = bytearray(_LZ4_HEADER)
    view = memoryview(data)
    fast = level is None or level == LEVELS[Codec.LZ4][2]
    for at in range(0, len(view), _LZ4_BLOCK):
        raw = view[at : at + _LZ4_BLOCK]
        if fast:
            block = cramjam.lz4.compress_block(raw, store_size=False)
        else:
            high = min(level or 0, _LZ4_LEVEL_MAX)
            block = cramjam.lz4.compress_block(raw, store_size=False, mode="high_compression", compression=high)
        if len(block) >= len(raw):
            out += struct.pack("<I", len(raw) | _LZ4_UNCOMPRESSED)
            out += raw
        else:
            out += struct.pack("<I", len(block))
            out += memoryview(block)
    out += bytes(4)
    return bytes(out)


def _lz4_decompress(data: Bytes, max_bytes: int) -> bytes:
    """Decompress as Kafka's Lz4BlockInputStream does: refuse dependent blocks, do not verify the content checksum (the batch's
    CRC covers every byte), and ignore what follows the end mark."""
    view = memoryview(data)
    magic, flags, descriptor = struct.unpack_from("<IBB", view)
    if magic != _LZ4_MAGIC:
        raise Malformed(f"lz4 frame has the wrong magic {magic:#x}")
    if flags >> 6 != 1:
        raise Malformed(f"lz4 frame has the unknown version {flags >> 6}")
    if not flags & 0x20:
        raise Malformed("lz4 frame has dependent blocks, which are not supported")
    size_code = descriptor >> 4 & 7
    if size_code < 4:
        raise Malformed(f"lz4 frame has the unknown block size {size_code}")
    block_max = 1 << (2 * size_code + 8)
    at = 6 + (8 if flags & 0x08 else 0)
    if at >= len(view) or view[at] != xxh32(bytes(view[4:at])) >> 8 & 0xFF:
        raise Malformed("lz4 frame descriptor is corrupt: its checksum does not match")
    at += 1
    trailer = 4 if flags & 0x10 else 0
    out = bytearray()
    # Blocks do not give their decompressed size: allocate for a full block, at most one byte over the limit.
    scratch = memoryview(bytearray(min(block_max, max_bytes + 1)))
    while True:
        (word,) = struct.unpack_from("<I", view, at)
        at += 4
        if word == 0:
            return bytes(out)
        size = word & ~_LZ4_UNCOMPRESSED
        if size > block_max or at + size + trailer > len(view):
            raise Malformed(f"lz4 block of {size} bytes is too large or runs past the end of the data")
        block = view[at : at + size]
        if word & _LZ4_UNCOMPRESSED:
            out += block
        else:
            written = cramjam.lz4.decompress_block_into(block, scratch)
            out += scratch[:written]
        if len(out) > max_bytes:
            raise TooLarge(max_bytes, out)
        at += size + trailer


_P1, _P2, _P3, _P4, _P5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
_M32: Final = 0xFFFFFFFF


def xxh32(data: bytes) -> int:
    """Compute XXH32 with seed 0 of less than 16 bytes; a frame descriptor has 2 or 10."""
    if len(data) >= 16:
        raise ValueError("this xxh32 is for frame descriptors")
    h = (_P5 + len(data)) & _M32
    at = 0
    while at + 4 <= len(data):
        h = (h + int.from_bytes(data[at : at + 4], "little") * _P3) & _M32
        h = ((h << 17 | h >> 15) & _M32) * _P4 & _M32
        at += 4
    for byte in data[at:]:
        h = (h + byte * _P5) & _M32
        h = ((h << 11 | h >> 21) & _M32) * _P1 & _M32
    h = (h ^ h >> 15) * _P2 & _M32
    h = (h ^ h >> 13) * _P3 & _M32
    return h ^ h >> 16


# -- zstd

_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_SKIPPABLE: Final = 0x184D2A50
_ZSTD_BLOCK_MAX: Final = 128 * 1024


def _zstd_compress(data: Bytes, level: int | None) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=LEVELS[Codec.ZSTD][2] if level is None else level))


def _zstd_decompress(data: Bytes, max_bytes: int) -> bytes:
    view = memoryview(data)
    if _zstd_bound(view, max_bytes) <= max_bytes:
        return bytes(cramjam.zstd.decompress(view))
    out = bytearray(max_bytes)
    try:
        size = cramjam.zstd.decompress_into(view, out)
    except cramjam.DecompressionError as error:
        if "whole buffer" in str(error):
            raise TooLarge(max_bytes, out) from None
        raise
    return bytes(memoryview(out)[:size])


def _zstd_bound(view: memoryview, enough: int) -> int:
    """Return an upper bound of the decompressed size, from the block headers only; counting stops above `enough`."""
    at = bound = 0
    while at < len(view) and bound <= enough:
        (magic,) = struct.unpack_from("<I", view, at)
        if magic & ~0xF == _ZSTD_SKIPPABLE:
            at += 8 + int(struct.unpack_from("<I", view, at + 4)[0])
            continue
        if magic != _ZSTD_MAGIC:
            raise Malformed(f"zstd frame has the wrong magic {magic:#x}")
        at, size = _zstd_frame_bound(view, at + 4, enough)
        bound += size
    return bound


def _zstd_frame_bound(view: memoryview, at: int, enough: int) -> tuple[int, int]:
    (descriptor,) = struct.unpack_from("<B", view, at)
    single_segment = descriptor & 0x20
    content_size_bytes = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    at += 1 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3] + content_size_bytes
    bound = 0
    while bound <= enough:
        low, high = struct.unpack_from("<HB", view, at)
        header = low | high << 16
        kind, size = header >> 1 & 3, header >> 3
        at += 3 + (1 if kind == 1 else size)
        bound += size if kind < 2 else _ZSTD_BLOCK_MAX
        if header & 1:
            break
    return at + (4 if descriptor & 4 else 0), bound


_COMPRESSORS: Final[dict[Codec, Callable[[Bytes, int | None], bytes]]] = {
    Codec.GZIP: _gzip_compress,
    Codec.SNAPPY: _snappy_compress,
    Codec.LZ4: _lz4_compress,
    Codec.ZSTD: _zstd_compress,
}
_DECOMPRESSORS: Final[dict[int, Callable[[Bytes, int], bytes]]] = {
    Codec.GZIP: _gzip_decompress,
    Codec.SNAPPY: _snappy_decompress,
    Codec.LZ4: _lz4_decompress,
    Codec.ZSTD: _zstd_decompress,
}
