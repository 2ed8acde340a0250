"""Where `Faults` take effect in a broker, and how a test asks for them: by `FaultControl` in its own process, or through a Unix
socket, one JSON object a line in, one out.

Only a broker that `barnabas.testing` started has this: its handlers are wrapped, and other brokers do not pay for it.
"""

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.host.disk import Disk, ReadableBuffer
from barnabas.broker.runtime.faults import TEST_CLIENT_ID, ApiFault, Faults
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.server.call import Call
from barnabas.broker.server.connection import Connection
from barnabas.broker.server.handler import ApiHandler, HandlerResult
from barnabas.wire.messages.produce import ProduceRequest
from barnabas.wire.record_batch import HEADER_SIZE, MAGIC_AT

log = logging.getLogger(__name__)

COMMAND_BYTES_MAX = 65536
#: After this time a connection that is being closed is closed for certain.
CLOSED_AFTER_MS = 10
#: Prefix of the client ids on connections between brokers: `broker-<id>-<purpose>`.
BROKER_CLIENT_PREFIX = "broker-"


class FaultyDisk(Disk):
    """A disk that fails, or is slow, when a test asks for it. Reads still work: a full disk has what it has.

    After `Faults.is_dead` nothing is written: in a test's own process a killed broker still closes its files.
    """

    __slots__ = ("_faults",)

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def open(
        self,
        path: str,
        *,
        create: bool = False,
        exclusive: bool = False,
        truncate: bool = False,
        read_only: bool = False,
        mode: int = 0o644,
    ) -> int:
        if self._faults.is_dead and (create or exclusive or truncate):
            return super().open(os.devnull)
        return super().open(path, create=create, exclusive=exclusive, truncate=truncate, read_only=read_only, mode=mode)

    def pwrite(self, fd: int, data: ReadableBuffer, position: int) -> int:
        if self._faults.is_dead:
            return len(data)
        self._check()
        if self._faults.tears_write and _is_batch(data):
            super().pwrite(fd, memoryview(data)[: len(data) // 2], position)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().pwrite(fd, data, position)

    def fsync(self, fd: int) -> None:
        if not self._faults.is_dead:
            self._check()
            super().fsync(fd)

    def fdatasync(self, fd: int) -> None:
        if not self._faults.is_dead:
            self._check()
            super().fdatasync(fd)

    def truncate(self, fd: int, size_bytes: int) -> None:
        if not self._faults.is_dead:
            super().truncate(fd, size_bytes)

    def reserve(self, fd: int, position: int, size_bytes: int) -> None:
        if not self._faults.is_dead:
            super().reserve(fd, position, size_bytes)

    def rename(self, source: str, target: str) -> None:
        if not self._faults.is_dead:
            super().rename(source, target)

    def unlink(self, path: str) -> bool:
        return self._faults.is_dead or super().unlink(path)

    def mkdir(self, path: str) -> None:
        if not self._faults.is_dead:
            super().mkdir(path)

    def makedirs(self, path: str) -> None:
        if not self._faults.is_dead:
            super().makedirs(path)

    def rmdir(self, path: str) -> None:
        if not self._faults.is_dead:
            super().rmdir(path)

    def rmtree(self, path: str) -> None:
        if not self._faults.is_dead:
            super().rmtree(path)

    def set_modified_ns(self, path: str, modified_ns: int) -> None:
        if not self._faults.is_dead:
            super().set_modified_ns(path, modified_ns)

    def _check(self) -> None:
        self._faults.check_disk()
        if delay_s := self._faults.disk_delay_s():
            # The writer blocks, as with a slow disk: the loop for an append, a thread for a flush.
            time.sleep(delay_s)


def _is_batch(data: ReadableBuffer) -> bool:
    """Whether these bytes are a record batch: checkpoints and other files use the same disk."""
    return len(data) > HEADER_SIZE and data[MAGIC_AT] == 2


Execute = Callable[[Call, Any], HandlerResult]


def wrap_handlers(handlers: Iterable[ApiHandler], faults: Faults, spawn: Spawn) -> None:
    for handler in handlers:
        handler.execute = _faulty(handler, handler.execute, faults, spawn)


def _faulty(handler: ApiHandler, execute: Execute, faults: Faults, spawn: Spawn) -> Execute:
    def run(call: Call, request: Any) -> HandlerResult:
        call.channel.client_id = call.client_id or ""
        if call.client_id == TEST_CLIENT_ID:
            return execute(call, request)
        peer = _broker_of(call.client_id)
        if peer is not None and faults.refuses_to_hear(peer):
            call.channel.fail(f"cut off from broker {peer}")
            return None
        fault = faults.api_fault(handler.name, call.client_id)
        delay_ms = faults.request_delay_ms(peer)
        if fault is not None:
            log.info("[fault injection] %s of %s: %s", handler.name, call.client_id, fault.effect)
            delay_ms += fault.delay_ms
            if fault.lose_answer:
                # Close first, then execute: otherwise the answer could be sent before the close.
                call.channel.fail("an injected fault loses the answer")
                delay_ms = max(delay_ms, CLOSED_AFTER_MS)
        if delay_ms:
            _keep_records(request)
            spawn(_later(call, request, execute, fault, delay_ms), f"delayed {handler.name}")
            return None
        return _carry_out(call, request, execute, fault)

    return run


def _carry_out(call: Call, request: Any, execute: Execute, fault: ApiFault | None) -> HandlerResult:
    if fault is not None and fault.drop:
        call.channel.fail("dropped by an injected fault")
        return None
    if fault is not None and fault.error is not None:
        raise Refused(fault.error, "injected by a test")
    return execute(call, request)


async def _later(call: Call, request: Any, execute: Execute, fault: ApiFault | None, delay_ms: int) -> None:
    await asyncio.sleep(delay_ms / 1000)
    try:
        result = _carry_out(call, request, execute, fault)
        if isinstance(result, Awaitable):
            result = await result
    except Refused as refusal:
        result = call.api.refuse(request, refusal.code, refusal.message)
    if result is not None:
        call.reply(result)


def _keep_records(request: Any) -> None:
    """Copy a Produce's records: they are in the receive buffer, which other requests use when the delay is over."""
    if isinstance(request, ProduceRequest):
        for topic in request.topic_data:
            for data in topic.partition_data:
                if isinstance(data.records, memoryview):
                    data.records = memoryview(bytearray(data.records))


def _broker_of(client_id: str | None) -> int | None:
    if client_id is None or not client_id.startswith(BROKER_CLIENT_PREFIX):
        return None
    number = client_id.removeprefix(BROKER_CLIENT_PREFIX).partition("-")[0]
    return int(number) if number.isdigit() else None


class FaultControl:
    """Carries out a test's commands in a broker. Owner: the event loop."""

    def __init__(
        self,
        faults: Faults,
        *,
        connections: Callable[[], Iterable[Connection]],
        fail_log_dir: Callable[[str], None],
        on_clock: Callable[[], None],
    ) -> None:
        self._faults = faults
        self._connections = connections
        self._fail_log_dir = fail_log_dir
        self._on_clock = on_clock

    def obey(self, command: dict[str, Any]) -> object:
        """The answer, for commands that have one. :raises ValueError, KeyError, TypeError: for a command that is wrong."""
        match command.pop("do"):
            case "fail_api":
                error = command.pop("error", None)
                return self._faults.add_api_fault(
                    ApiFault(**command, error=None if error is None else ErrorCode[error])
                )
            case "fired":
                return self._faults.asked[command["fault"]].fired
            case "end_api_fault":
                self._faults.end_api_fault(command["fault"])
            case "counts":
                return self._faults.hits.counts()
            case "slow_disk":
                self._faults.disk_delay_ms = int(command["delay_ms"])
            case "tear_write":
                self._faults.tears_write = True
            case "slow_network":
                self._faults.network_delay_ms = int(command["delay_ms"])
            case "slow_peer":
                delays = {**self._faults.peer_delays_ms, int(command["broker"]): int(command["delay_ms"])}
                self._faults.peer_delays_ms = delays
            case "skew_clock":
                self._faults.clock.skew_ms = int(command["ms"])
            case "cut_off":
                self._faults.cut_off = frozenset(command["brokers"])
                self.drop_connections("broker-")
            case "be_deaf_to":
                self._faults.deaf_to = frozenset(command["brokers"])
                self.drop_connections("broker-")
            case "drop_connections":
                return self.drop_connections(command.get("client_id", ""))
            case "fill_disk":
                self._faults.fill_disk()
            case "break_disk":
                self._faults.break_disk()
            case "mend_disk":
                self._faults.disk_errno = 0
            case "fail_log_dir":
                self._fail_log_dir(command["path"])
            case "advance_clock":
                self._faults.clock.offset_ms += int(command["ms"])
                self._on_clock()
            case "clear":
                self._faults.clear()
            case unknown:
                raise ValueError(f"no such command: {unknown}")
        return None

    def drop_connections(self, client_id: str) -> int:
        """Close connections of clients whose id starts so; return how many there were."""
        dropped = [each for each in self._connections() if each.client_id.startswith(client_id)]
        for connection in dropped:
            connection.close()
        return len(dropped)


class ControlSocket:
    """The socket of a broker that is a process of its own. Owner: the event loop."""

    def __init__(self, control: FaultControl) -> None:
        self._control = control

    async def start(self, path: str) -> None:
        """It listens until the process ends."""
        self._server = await asyncio.start_unix_server(self._serve, path, limit=COMMAND_BYTES_MAX)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                try:
                    answer: dict[str, object] = {"ok": True, "answer": self._control.obey(json.loads(line))}
                except (ValueError, KeyError, TypeError) as error:
                    answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except ConnectionError as error:
            log.debug("control connection lost: %s", error)
        finally:
            writer.close()
