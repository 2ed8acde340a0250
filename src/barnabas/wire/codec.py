"""Convert bytes to messages and back, with one specialised read and write function for each (class, version).

`codec_read` and `codec_write` generate Python source for these functions from a class's wire specs. It is compiled at first use
and cached. Whatever bytes a peer sends, a reader raises only `Malformed`, never reads past the end of its input, and takes
memory only in proportion to it.

A writer silently leaves out fields that the version does not have: handlers fill in every field, and the version decides.
(Kafka refuses if such a field is not marked as ignorable.) A value that cannot be written, such as null in a field that is not
nullable, raises `Unwritable`: that is a bug of this side, not of the peer.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, Protocol, TypeVar

from barnabas.base.errors import Malformed
from barnabas.wire import codec_read, codec_write
from barnabas.wire.codec_read import TooManyElements
from barnabas.wire.codec_write import Unwritable
from barnabas.wire.messages.base import Record, RecordsRef, Versioned
from barnabas.wire.varint import Buffer

__all__ = [
    "RecordsRef",
    "TooManyElements",
    "Unwritable",
    "bounded_reader",
    "check_version",
    "decode",
    "decode_versioned",
    "encode",
    "encode_versioned",
    "reader",
    "writer",
]

M = TypeVar("M", bound=Versioned)
R = TypeVar("R", bound=Record)
M_co = TypeVar("M_co", bound=Versioned, covariant=True)
M_contra = TypeVar("M_contra", bound=Versioned, contravariant=True)


class Reader(Protocol[M_co]):
    def __call__(self, buf: Buffer, pos: int, end: int, /) -> tuple[M_co, int]: ...


class Writer(Protocol[M_contra]):
    def __call__(self, obj: M_contra, out: bytearray, /) -> None: ...


_INT16 = Struct(">h")

#: The compiled functions. Callers on the hot path look here first. Bounded by the number of messages: about 300 classes
#: with a few versions each.
readers: dict[tuple[type, int], Reader[Any]] = {}
_bounded_readers: dict[tuple[type, int, int], Callable[..., object]] = {}
writers: dict[tuple[type, int], Writer[Any]] = {}


def reader(cls: type[M], version: int) -> Reader[M]:
    """`(buf, pos, end) -> (message, next position)`. `records` fields are slices of `buf`; all other fields are copies."""
    read = readers.get((cls, version))
    if read is None:
        check_version(cls, version)
        read = readers[cls, version] = codec_read.compile_reader(cls, version, version >= cls.FLEXIBLE_FROM)
    return read


def bounded_reader(cls: type[M], version: int, budget: codec_read.Budget) -> Reader[M]:
    """The same for untrusted input: the elements of arrays are subtracted from the budget, a list with one number."""
    key = (cls, version, id(budget))
    read = _bounded_readers.get(key)
    if read is None:
        check_version(cls, version)
        read = codec_read.compile_reader(cls, version, version >= cls.FLEXIBLE_FROM, budget)
        _bounded_readers[key] = read
    return read  # type: ignore[return-value]


def writer(cls: type[M], version: int) -> Writer[M]:
    """`(message, out)`: appends the message to `out`."""
    write = writers.get((cls, version))
    if write is None:
        check_version(cls, version)
        write = writers[cls, version] = codec_write.compile_writer(cls, version, version >= cls.FLEXIBLE_FROM)
    return write


def check_version(cls: type[Versioned], version: int) -> None:
    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        raise ValueError(f"{cls.__name__} has versions {cls.MIN_VERSION} to {cls.MAX_VERSION}, not {version}")


def decode(cls: type[M], data: Buffer, version: int, offset: int = 0, *, allow_trailing: bool = False) -> M:
    """Decode the message from `offset` on. It must end at the end of `data` unless `allow_trailing`."""
    end = len(data)
    message, pos = reader(cls, version)(data, offset, end)
    if pos != end and not allow_trailing:
        raise Malformed(f"{cls.__name__} v{version}: {end - pos} bytes left over at {pos}")
    return message


def encode(message: Versioned, version: int) -> bytes:
    out = bytearray()
    writer(type(message), version)(message, out)
    return bytes(out)


def encode_versioned(record: Record, version: int) -> bytes:
    """Encode with the int16 version in front: keys and values of internal topics, consumer protocol metadata."""
    out = bytearray(_INT16.pack(version))
    writer(type(record), version)(record, out)
    return bytes(out)


def decode_versioned(cls: type[R], data: Buffer, *, newest_known: bool = False) -> tuple[R, int]:
    """Decode a record with the int16 version in front; return both.

    With `newest_known`, a version above the supported ones is read as the highest supported one, ignoring the rest. In this way
    members of a consumer group read each other's subscriptions (ConsumerProtocol).
    """
    if len(data) < 2:
        raise Malformed(f"{cls.__name__}: {len(data)} bytes, too short for a version")
    version: int = _INT16.unpack_from(data)[0]
    if newest_known and version > cls.MAX_VERSION:
        return decode(cls, data, cls.MAX_VERSION, 2, allow_trailing=True), version
    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        raise Malformed(f"{cls.__name__}: version {version}, known are {cls.MIN_VERSION} to {cls.MAX_VERSION}")
    return decode(cls, data, version, 2), version
