"""Notifications to systemd (`sd_notify`): ready, stopping, and that the event loop still turns. None if it does not ask.

A unit with `Type=notify` waits for READY=1; one with `WatchdogSec=` restarts a broker whose loop stands still.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)


class Notifier:
    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        #: Time between two signs of life; None if systemd expects none.
        self.period_s: float | None = None
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        if self._address and is_ours and environment.get("WATCHDOG_USEC", "").isdigit():
            self.period_s = int(environment["WATCHDOG_USEC"]) / 1_000_000 / 2

    def tell(self, **state: str) -> None:
        """`tell(READY="1", STATUS="serving")`"""
        if not self._address:
            return
        # A name that begins with @ is in Linux's abstract namespace.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        message = "\n".join(f"{name}={value}" for name, value in state.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.sendto(message.encode(), address)
        except OSError as error:
            log.warning("systemd is not told %s: %s", message.replace("\n", " "), error)

    async def show_life(self) -> None:
        """Until cancelled. On the loop: one that stands still shows none."""
        while self.period_s is not None:
            self.tell(WATCHDOG="1")
            await asyncio.sleep(self.period_s)
