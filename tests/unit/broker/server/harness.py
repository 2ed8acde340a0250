"""A socket server with handlers that a test controls, and a raw client that speaks frames."""

import asyncio
import ssl
import struct
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from barnabas.base.errors import ErrorCode
from barnabas.base.host.disk import REAL_DISK
from barnabas.base.metrics.registry import Registry
from barnabas.broker.security.connection_rates import ConnectionRates
from barnabas.broker.server.call import Call
from barnabas.broker.server.connection_quotas import ConnectionLimits
from barnabas.broker.server.handler import ApiHandler
from barnabas.broker.server.listener import Endpoint, SocketServer
from barnabas.broker.server.pipeline import Pipeline
from barnabas.broker.storage.file_handle import FileRange, OpenFile
from barnabas.wire import frame
from barnabas.wire.codec import RecordsRef, decode
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.versions import api_named
from tests.support.waiting import eventually


def heartbeat(group: str = "g") -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=1, member_id="m")


class PinnedRange(FileRange):
    """A file range that counts its releases."""

    def __init__(self, path: str, position: int, size_bytes: int) -> None:
        handle = OpenFile(REAL_DISK, REAL_DISK.open(path, read_only=True), path)
        super().__init__(handle, position, size_bytes)
        handle.let_go()
        self.released = 0

    def release(self) -> None:
        self.released += 1
        super().release()


def fetch_response(ranges: list[PinnedRange]) -> FetchResponse:
    size = sum(each.size_bytes for each in ranges)
    data = PartitionData(partition_index=0, records=RecordsRef(size, ranges))
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])


class Harness:
    """`async with Harness(...) as server`: handlers by API name."""

    def __init__(
        self,
        handlers: dict[str, Callable[[Call, Any], Any]] | None = None,
        *,
        limits: ConnectionLimits | None = None,
        rates: ConnectionRates | None = None,
        request_bytes_max: int = 1_000_000,
        queued_requests_max: int = 500,
        queued_bytes_max: int = -1,
        held_apis: Iterable[int] = (),
        endpoint: Endpoint | None = None,
        more: Iterable[ApiHandler] = (),
    ) -> None:
        """`more` are handlers that come with their API; `endpoint` is a listener with security."""
        self._endpoint = endpoint or Endpoint(name="PLAINTEXT", host="127.0.0.1", port=0)
        self._more = more
        self._handlers = {"Heartbeat": lambda call, request: HeartbeatResponse(), **(handlers or {})}
        self._limits = limits or ConnectionLimits()
        self._rates = rates
        self._request_bytes_max = request_bytes_max
        self._queued_requests_max = queued_requests_max
        self._queued_bytes_max = queued_bytes_max
        self._held_apis = held_apis
        self.bugs: list[BaseException] = []
        self.registry = Registry()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self.tasks: set[asyncio.Task[None]] = set()
        self.pool = ThreadPoolExecutor(2)

        def spawn(work: Any, name: str) -> None:
            task = loop.create_task(work, name=name)
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

        apis = [
            ApiHandler(api_named(name), execute, _refusal(name), sends_files=name == "Fetch")
            for name, execute in self._handlers.items()
        ]
        self.pipeline = Pipeline(
            {api.api_key: api for api in (*apis, *self._more)},
            self.registry,
            now_s=loop.time,
            spawn=spawn,
            on_bug=self.bugs.append,
            request_bytes_max=self._request_bytes_max,
            queued_requests_max=self._queued_requests_max,
            held_apis=self._held_apis,
        )
        self.server = SocketServer(
            loop,
            self.pipeline,
            self.pool,
            self.registry,
            limits=self._limits,
            rates=self._rates,
            spawn=spawn,
            queued_bytes_max=self._queued_bytes_max,
        )
        self.port = self.server.bind(self._endpoint)
        self.server.start_accepting()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.server.stop_accepting()
        self.server.close_all()
        for task in list(self.tasks):
            task.cancel()
        if self.tasks:
            await asyncio.wait(list(self.tasks))
        await eventually(lambda: not self.server.connections)
        self.pool.shutdown()

    async def client(self, tls: ssl.SSLContext | None = None, *, port: int | None = None) -> "RawClient":
        return RawClient(*await asyncio.open_connection("127.0.0.1", port or self.port, ssl=tls))


def _refusal(name: str) -> Callable[[Any, ErrorCode, str | None], ApiMessage]:
    response_class: Any = api_named(name).response_class

    def refuse(request: Any, code: ErrorCode, message: str | None) -> ApiMessage:
        return response_class(error_code=code) if name != "Produce" else response_class()

    return refuse


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, request: ApiMessage, version: int, correlation_id: int) -> None:
        self.writer.write(frame.encode_request(request, version, correlation_id, "test"))

    async def receive(self) -> bytes:
        async with asyncio.timeout(60):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def correlation_id(self) -> int:
        return int.from_bytes((await self.receive())[:4], "big")

    async def heartbeat(self, correlation_id: int = 1, version: int = 3) -> HeartbeatResponse:
        self.send(heartbeat(), version, correlation_id)
        data = await self.receive()
        assert int.from_bytes(data[:4], "big") == correlation_id
        return decode(HeartbeatResponse, data, version, 4)

    async def is_closed(self) -> bool:
        """Whether the server has hung up."""
        async with asyncio.timeout(60):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return
