"""A broker for one test: real sockets, canned answers, and the means to misbehave."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from barnabas.wire import codec, frame
from barnabas.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.versions import API


@dataclass
class Call:
    """One request as the broker received it, and the means to answer it."""

    message: ApiMessage
    version: int
    correlation_id: int
    writer: asyncio.StreamWriter

    def reply(self, response: ApiMessage, *, correlation_id: int | None = None) -> None:
        self.reply_raw(
            frame.encode_response(
                response, self.version, self.correlation_id if correlation_id is None else correlation_id
            )
        )

    def reply_raw(self, data: bytes) -> None:
        self.writer.write(data)


Handler = Callable[[Call], Awaitable[None] | None]


@dataclass
class FakeBroker:
    """Serves every API at every version with the given handlers; ApiVersions has a default one."""

    handlers: dict[int, Handler] = field(default_factory=dict)
    #: The versions in ApiVersions by API key; by default all that this package supports.
    served: dict[int, tuple[int, int]] = field(
        default_factory=lambda: {key: (api.min_version, api.max_version) for key, api in API.items()}
    )
    calls: list[Call] = field(default_factory=list)
    host: str = "127.0.0.1"
    port: int = 0

    async def __aenter__(self) -> Self:
        self._writers: list[asyncio.StreamWriter] = []
        self._server = await asyncio.start_server(self._serve, self.host, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop_connections()
        self._server.close()
        await self._server.wait_closed()
        for writer in self._writers:
            try:
                await writer.wait_closed()
            except ConnectionError:
                continue  # the peer disconnected first

    def drop_connections(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                await self._handle(await reader.readexactly(size), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _handle(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        header = frame.parse_request_header(data)
        message = codec.decode(API[header.api_key].request_class, data, header.api_version, header.body_offset)
        call = Call(message, header.api_version, header.correlation_id, writer)
        self.calls.append(call)
        handler = self.handlers.get(header.api_key)
        if handler is not None:
            waiting = handler(call)
            if waiting is not None:
                await waiting
        elif header.api_key == 18:
            call.reply(self.api_versions())

    def api_versions(self) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in self.served.items()
            ]
        )
