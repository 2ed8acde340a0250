"""A long answer is sent in steps: a fast reader does not block the loop until all of it is sent."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from barnabas.broker.server.writer import SEND_STEP_BYTES, SocketWriter, TransportWriter
from tests.support.waiting import eventually

pytestmark = pytest.mark.uvloop


ANSWER = bytes(5 * SEND_STEP_BYTES + 17)


class GreedySocket:
    """Takes whatever it is given."""

    def __init__(self, real: socket.socket) -> None:
        self._real = real
        self.sent: list[int] = []

    def dup(self) -> "GreedySocket":
        return self

    def setblocking(self, flag: bool) -> None:
        self._real.setblocking(flag)

    def fileno(self) -> int:
        return self._real.fileno()

    def send(self, data: bytes, flags: int = 0) -> int:
        self.sent.append(len(data))
        return len(data)

    def close(self) -> None:
        self._real.close()


async def test_long_answer_leaves_a_socket_in_steps() -> None:
    near, far = socket.socketpair()
    drained: list[bool] = []
    with far, ThreadPoolExecutor(1) as pool:
        greedy = GreedySocket(near)
        writer = SocketWriter(
            asyncio.get_running_loop(),
            cast(socket.socket, greedy),
            pool,
            on_drained=lambda: drained.append(True),
            on_error=lambda error: None,
        )
        writer.write([ANSWER])
        assert greedy.sent == [SEND_STEP_BYTES]
        await eventually(lambda: bool(drained))
        writer.write([b"header", ANSWER])
        assert greedy.sent[6:] == [len(b"header"), SEND_STEP_BYTES]
        await eventually(lambda: len(drained) == 2)
        writer.close()
    steps = [SEND_STEP_BYTES] * 5 + [17]
    assert greedy.sent == [*steps, len(b"header"), *steps]


class GreedyTransport:
    def __init__(self) -> None:
        self.written: list[int] = []

    def write(self, data: bytes) -> None:
        self.written.append(len(data))


async def test_long_answer_is_encrypted_in_steps() -> None:
    drained: list[bool] = []
    transport = GreedyTransport()
    with ThreadPoolExecutor(1) as pool:
        writer = TransportWriter(
            asyncio.get_running_loop(),
            cast(asyncio.Transport, transport),
            pool,
            on_drained=lambda: drained.append(True),
            on_error=lambda error: None,
        )
        writer.write([ANSWER])
        assert transport.written == [SEND_STEP_BYTES]
        await eventually(lambda: bool(drained))
    assert transport.written == [SEND_STEP_BYTES] * 5 + [17]
