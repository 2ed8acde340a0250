"""Frames: a four-byte size, a header, a message.

The header's version follows from the API and its version (`versions.Api`), with two exceptions: ApiVersions is always answered
with the oldest header, and version 0 of ControlledShutdown has no client id.
"""

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from barnabas.base.errors import Malformed
from barnabas.wire.codec import check_version, writer
from barnabas.wire.codec_write import FramePart, compile_frame_writer
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.varint import Buffer
from barnabas.wire.versions import API, API_VERSIONS, CONTROLLED_SHUTDOWN, api_of
from barnabas.wire.wire import append_string, skip_tagged_fields

_REQUEST_HEAD = Struct(">hhi")
_REQUEST_HEAD_AND_LENGTH = Struct(">hhih")
_SIZE = Struct(">i")

#: The first version whose request header has tagged fields, by API key.
_FLEXIBLE_FROM: dict[int, int] = {key: api.request_flexible_from for key, api in API.items()}

ResponseWriter = Callable[[ApiMessage, int], list[FramePart]]
#: The compiled functions that `response_writer` returns. Callers on the hot path look here first.
response_writers: dict[tuple[type[ApiMessage], int], ResponseWriter] = {}


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    #: Start of the message, in the same coordinates as the header's position.
    body_offset: int


def parse_request_header(buf: Buffer, pos: int = 0, end: int | None = None) -> RequestHeader:
    return RequestHeader(*read_request_header(buf, pos, len(buf) if end is None else end))


def read_request_header(buf: Buffer, pos: int, end: int) -> tuple[int, int, int, str | None, int]:
    """Read the header of the request at `pos`, after the frame's size, as the fields of a `RequestHeader`: a plain tuple costs
    a fifth of the time. Whether the version is served is not checked here.

    An unknown API key is `Malformed`. An unknown version is not, because ApiVersions must answer it.
    """
    if end - pos < 10:
        return _read_short_header(buf, pos, end)
    key, version, correlation_id, size = _REQUEST_HEAD_AND_LENGTH.unpack_from(buf, pos)
    flexible_from = _FLEXIBLE_FROM.get(key)
    if flexible_from is None:
        raise Malformed(f"request header: unknown API key {key}")
    if key == CONTROLLED_SHUTDOWN and version == 0:
        return key, version, correlation_id, None, pos + 8
    pos += 10
    if size >= 0:
        stop = pos + size
        if stop > end:
            raise Malformed(f"request header: client id claims {size} bytes, {end - pos} left")
        try:
            client_id = str(buf[pos:stop], "utf-8")
        except UnicodeDecodeError as error:
            raise Malformed(f"request header: client id is not UTF-8 ({error.reason})") from None
        pos = stop
    else:
        client_id = None
    if version >= flexible_from:
        if pos < end and buf[pos] == 0:
            pos += 1
        else:
            pos = skip_tagged_fields(buf, pos, end, "request header tagged fields")
    return key, version, correlation_id, client_id, pos


def _read_short_header(buf: Buffer, pos: int, end: int) -> tuple[int, int, int, str | None, int]:
    """Read eight bytes; only version 0 of ControlledShutdown is that short."""
    if end - pos >= 8:
        key, version, correlation_id = _REQUEST_HEAD.unpack_from(buf, pos)
        if key == CONTROLLED_SHUTDOWN and version == 0:
            return key, version, correlation_id, None, pos + 8
    raise Malformed(f"request header: {end - pos} bytes, too short")


def encode_request(request: ApiMessage, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Encode a whole frame, including its size."""
    header_version = api_of(request.API_KEY).request_header_version(version)
    out = bytearray(4)
    out += _REQUEST_HEAD.pack(request.API_KEY, version, correlation_id)
    if header_version >= 1:
        append_string(out, client_id)  # not compact, even in a flexible header
    if header_version >= 2:
        out.append(0)
    writer(type(request), version)(request, out)
    _SIZE.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def response_head(api_key: int, version: int, correlation_id: int) -> bytes:
    """Encode the response header only, without the frame's size."""
    if api_key != API_VERSIONS and version >= API[api_key].response_flexible_from:
        return _SIZE.pack(correlation_id) + b"\0"
    return _SIZE.pack(correlation_id)


def response_writer(cls: type[ApiMessage], version: int) -> ResponseWriter:
    """Return `(response, correlation_id) -> parts of the frame`. The size in the frame includes the data of the refs."""
    write = response_writers.get((cls, version))
    if write is None:
        check_version(cls, version)
        flexible = version >= cls.FLEXIBLE_FROM
        write = response_writers[cls, version] = compile_frame_writer(
            cls, version, flexible, flexible_header=flexible and cls.API_KEY != API_VERSIONS
        )
    return write


def encode_response(response: ApiMessage, version: int, correlation_id: int) -> bytearray:
    """Encode a whole frame, including its size. The response has no refs."""
    (frame,) = response_writer(type(response), version)(response, correlation_id)
    assert isinstance(frame, bytearray)
    return frame


def parse_response_header(api_key: int, version: int, buf: Buffer, pos: int = 0) -> tuple[int, int]:
    """Return the correlation id and the start of the message. `pos` is after the frame's size."""
    end = len(buf)
    if end - pos < 4:
        raise Malformed(f"response header: {end - pos} bytes, too short")
    correlation_id: int = _SIZE.unpack_from(buf, pos)[0]
    pos += 4
    if api_of(api_key).response_header_version(version) >= 1:
        pos = skip_tagged_fields(buf, pos, end, "response header tagged fields")
    return correlation_id, pos
