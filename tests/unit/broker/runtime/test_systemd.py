"""systemd's protocol: a datagram to the socket in its environment variable."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.base.host.systemd import Notifier


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(60)
        yield sock


def test_state_reaches_systemd_in_one_datagram(listener: socket.socket) -> None:
    Notifier({"NOTIFY_SOCKET": listener.getsockname()}).tell(READY="1", STATUS="serving")
    assert listener.recv(100) == b"READY=1\nSTATUS=serving"


def test_loop_notifies_the_watchdog_twice_in_each_period(listener: socket.socket) -> None:
    settings = {"NOTIFY_SOCKET": listener.getsockname(), "WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid())}
    notifier = Notifier(settings)
    assert notifier.period_s == 0.01

    async def live() -> list[bytes]:
        life = asyncio.create_task(notifier.show_life())
        seen = [await asyncio.to_thread(listener.recv, 100) for _ in range(3)]
        life.cancel()
        return seen

    assert asyncio.run(live()) == [b"WATCHDOG=1"] * 3


@pytest.mark.parametrize(
    "settings", [{}, {"WATCHDOG_USEC": "1000"}, {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}]
)
def test_without_a_watchdog_no_notifications_are_sent(settings: dict[str, str]) -> None:
    notifier = Notifier(settings)
    assert notifier.period_s is None
    asyncio.run(notifier.show_life())


def test_systemd_that_is_gone_does_no_harm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell(STOPPING="1")
    assert "cannot send STOPPING=1" in caplog.text
