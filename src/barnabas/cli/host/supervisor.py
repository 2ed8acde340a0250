"""Keep the brokers of a host running: one process each, which ends with this process.

Owner: the event loop. SIGTERM and SIGINT stop all of them cleanly, SIGHUP restarts them one after the other.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from barnabas.base.backoff import Backoff
from barnabas.base.errors import BarnabasError
from barnabas.base.host.systemd import Notifier
from barnabas.broker.server.metrics_http import MetricsServer, Unanswered
from barnabas.cli.host.metrics import merge
from barnabas.cli.host.settings import HostedBroker

_log = logging.getLogger(__name__)

#: Pause before an ended broker is started again. It doubles each time until the broker is ready.
FIRST_PAUSE_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0
STOP_TIMEOUT_S: Final = 330.0
#: How long a restarted broker may take to be in sync before the rolling restart stops.
IN_SYNC_TIMEOUT_S: Final = 3600.0
IN_SYNC_PERIOD_S: Final = 0.5
#: Timeout of a request to a broker's metrics port.
PAGE_TIMEOUT_S: Final = 4.0


class HostFailed(BarnabasError):
    """The brokers of this host did not start."""


class Supervised:
    """One broker: its process, or the pause before the next start."""

    def __init__(
        self, broker: HostedBroker, file: str, overrides: Sequence[str], on_change: Callable[[], None]
    ) -> None:
        self.id = broker.broker_id
        self.is_ready = False
        #: Exit status of its last process.
        self.ended: int | None = None
        self.listeners = ""
        self._metrics_url = ""
        self._broker = broker
        self._command = [sys.executable, "-m", "barnabas.broker.process", file, *overrides]
        self._on_change = on_change
        self._process: asyncio.subprocess.Process | None = None
        self._is_wanted = True
        self._restarts_now = False
        self._was_ready = False

    async def run(self) -> None:
        """Run until `stop`."""
        backoff = Backoff(FIRST_PAUSE_S, PAUSE_MAX_S)
        while True:
            code = await self._live()
            if not self._is_wanted:
                return
            if self._restarts_now:
                self._restarts_now = False
                continue
            if self._was_ready:
                backoff.succeeded()
            pause_s = backoff.failed()
            _log.error(
                "[broker %d] ended with status %d, starting it again in %g s; see its log lines above",
                self.id,
                code,
                pause_s,
            )
            await asyncio.sleep(pause_s)

    async def _live(self) -> int:
        self._was_ready = False
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command,
            *self._broker.arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "BARNABAS_PARENT_DEATH_SIGNAL": "1", "NOTIFY_SOCKET": ""},
        )
        try:
            await asyncio.gather(self._read_output(process), self._read_log(process), process.wait())
        finally:
            self._process = None
            self.is_ready = False
            self.ended = process.returncode
            self._on_change()
        assert process.returncode is not None
        return process.returncode

    async def _read_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            fields = dict(part.split("=", 1) for part in line.decode().split()[1:] if "=" in part)
            if "metrics" in fields:
                self.listeners, self._metrics_url = fields["listeners"], fields["metrics"]
                self._broker = self._broker.at(self.listeners)
                self.is_ready, self._was_ready, self.ended = True, True, None
                self._on_change()

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        """Copy the broker's log to this process's stderr; each line names the broker."""
        assert process.stderr is not None
        async for line in process.stderr:
            sys.stderr.buffer.write(f"[broker {self.id}] ".encode() + line)
            sys.stderr.buffer.flush()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def restart(self) -> None:
        self._restarts_now = True
        self._signal(signal.SIGTERM)

    def stop(self) -> None:
        self._is_wanted = False
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    async def page(self, path: str) -> tuple[bool, str]:
        """Ask the broker's own endpoint; return whether it answers OK, and its text. False if it does not answer."""
        if not self.is_ready:
            return False, "it is not running" if self._process is None else "it is starting"
        return await asyncio.to_thread(_get, f"{self._metrics_url}{path}")


def _get(url: str) -> tuple[bool, str]:
    try:
        with urllib.request.urlopen(url, timeout=PAGE_TIMEOUT_S) as answer:
            return True, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return False, refused.read().decode().strip()
    except OSError as error:
        return False, str(error)


class Supervisor:
    def __init__(
        self,
        brokers: Iterable[HostedBroker],
        file: str,
        *,
        overrides: Sequence[str] = (),
        on_ready: Callable[["Supervisor"], None],
    ) -> None:
        """`overrides`: settings for all brokers that override the file's."""
        self._changed = asyncio.Event()
        self.brokers = [Supervised(each, file, overrides, self._changed.set) for each in brokers]
        self._on_ready = on_ready
        self._stopping = asyncio.Event()
        self._roll: asyncio.Task[None] | None = None
        self._systemd = Notifier()
        self.server = MetricsServer(self._metrics)
        self.server.views = {
            b"/health": lambda query: self._all_say("/health"),
            b"/ready": lambda query: self._all_say("/ready"),
            b"/in-sync": lambda query: self._all_say("/in-sync"),
        }

    async def run(self, metrics: tuple[str, int] | None) -> None:
        """Run until a signal. `metrics`: host and port of the common endpoint."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._restart_all)
        if metrics is not None:
            await self.server.start(*metrics)
        life = asyncio.create_task(self._systemd.show_life(), name="systemd watchdog")
        tasks = [asyncio.create_task(each.run(), name=f"broker-{each.id}") for each in self.brokers]
        try:
            if await self._are_up():
                self._systemd.tell(READY="1", STATUS=f"{len(self.brokers)} brokers")
                self._on_ready(self)
                await self._stopping.wait()
        finally:
            self._systemd.tell(STOPPING="1")
            if self._roll is not None:
                self._roll.cancel()
            await self._stop(tasks)
            life.cancel()
            self.server.stop()

    async def _are_up(self) -> bool:
        """Wait until all are up; return False if a stop comes first. :raises HostFailed: if a broker ends before it is
        ready."""
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while not all(each.is_ready for each in self.brokers):
                for each in self.brokers:
                    if each.ended is not None:
                        raise HostFailed(f"broker {each.id} ended with status {each.ended}; its log says why")
                self._changed.clear()
                changed = asyncio.create_task(self._changed.wait())
                await asyncio.wait((changed, stopping), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if stopping.done():
                    return False
            return True
        finally:
            stopping.cancel()

    async def _stop(self, tasks: list["asyncio.Task[None]"]) -> None:
        for each in self.brokers:
            each.stop()
        _, late = await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S)
        if late:
            _log.error(
                "[host] %d brokers did not stop within %g s, killing them; they recover their logs at the next start",
                len(late),
                STOP_TIMEOUT_S,
            )
            for each in self.brokers:
                each.kill()
            await asyncio.wait(tasks)

    # -- rolling restart ----------------------------------------------------------------------------------------------

    def _restart_all(self) -> None:
        if self._roll is not None and not self._roll.done():
            _log.warning("[host] a rolling restart is already in progress; wait until it ends")
            return
        self._roll = asyncio.get_running_loop().create_task(self._roll_through(), name="rolling restart")

    async def _roll_through(self) -> None:
        """Restart the next broker once the last one is ready and in sync, so no partition lacks two replicas of this host."""
        for each in self.brokers:
            if not await self._is_in_sync(each):
                _log.error(
                    "[broker %d] is not in sync, stopping the roll; check it, then send SIGHUP again",
                    each.id,
                )
                return
            _log.info("[broker %d] restarting", each.id)
            each.restart()
            await self._until(lambda each=each: not each.is_ready)  # type: ignore[misc]
            await self._until(lambda each=each: each.is_ready)  # type: ignore[misc]
            if not await self._is_in_sync(each):
                _log.error(
                    "[broker %d] is not in sync after its restart, stopping the roll; check it, then send SIGHUP again",
                    each.id,
                )
                return
        _log.info("[host] all brokers were restarted")

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def _is_in_sync(self, broker: Supervised) -> bool:
        """Wait until the broker is in sync, and return whether it is in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IN_SYNC_TIMEOUT_S):
                while True:
                    if (await broker.page("/in-sync"))[0]:
                        return True
                    await asyncio.sleep(IN_SYNC_PERIOD_S)
        return False

    # -- the common endpoint ------------------------------------------------------------------------------------------

    async def _metrics(self) -> bytes:
        answers = await asyncio.gather(*(each.page("/metrics") for each in self.brokers))
        pages = {each.id: page for each, (ok, page) in zip(self.brokers, answers, strict=True) if ok}
        up = "# HELP barnabas_host_broker_up Whether the broker runs and answers.\n# TYPE barnabas_host_broker_up gauge\n"
        up += "".join(
            f'barnabas_host_broker_up{{broker="{each.id}"}} {int(each.id in pages)}\n' for each in self.brokers
        )
        return (up + merge(pages)).encode()

    async def _all_say(self, path: str) -> dict[str, Any]:
        answers = await asyncio.gather(*(each.page(path) for each in self.brokers))
        refusing = [
            f"broker {each.id}: {said}" for each, (ok, said) in zip(self.brokers, answers, strict=True) if not ok
        ]
        if refusing:
            raise Unanswered(503, "; ".join(refusing))
        return {"status": "pass", "brokers": [each.id for each in self.brokers]}
