"""Notifications to systemd (`sd_notify`): ready, stopping, and the watchdog. Sent only if systemd asks for them.

A unit with `Type=notify` waits for READY=1. One with `WatchdogSec=` restarts a broker whose event loop hangs.
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
        #: Period of the watchdog notifications; None if systemd expects none.
        self.period_s: float | None = None
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        if self._address and is_ours and environment.get("WATCHDOG_USEC", "").isdigit():
            self.period_s = int(environment["WATCHDOG_USEC"]) / 1_000_000 / 2

    def tell(self, **state: str) -> None:
        """Send a notification: `tell(READY="1", STATUS="serving")`."""
        if not self._address:
            return
        # A name that begins with @ is in Linux's abstract namespace.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        message = "\n".join(f"{name}={value}" for name, value in state.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.sendto(message.encode(), address)
        except OSError as error:
            log.warning(
                "[systemd] cannot send %s; check that NOTIFY_SOCKET is reachable: %s", message.replace("\n", " "), error
            )

    async def show_life(self) -> None:
        """Notify the watchdog until cancelled. It runs on the event loop, so a loop that hangs sends nothing."""
        while self.period_s is not None:
            self.tell(WATCHDOG="1")
            await asyncio.sleep(self.period_s)
