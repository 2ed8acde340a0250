"""Server processes of a local cluster: start, wait for, signal, restart. Used by `barnabas up` and by `barnabas.testing`.

Owner: any one thread at a time (a lock keeps it so). The processes are children of a zygote (see `_zygote`), which
ends them when this object is closed or its process dies, whatever it dies of.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from barnabas.core.errors import BarnabasError
from barnabas.runtime.parent import ENVIRONMENT_VARIABLE

BROKER_ENTRY = "barnabas.cli._serve:broker"
ZOOKEEPER_ENTRY = "barnabas.cli._serve:zookeeper"


class ProcessFailed(BarnabasError):
    """A server ended, or did not get ready; the message has the last lines of its log."""


@dataclass(slots=True)
class ServerProcess:
    name: str
    log: Path
    entry: str
    settings: dict[str, Any]
    stop_order: int = 0
    pid: int = -1
    #: What it told about itself when it began to serve; None until then.
    facts: dict[str, Any] | None = None
    #: None while it runs; negative: the signal that ended it.
    exit_status: int | None = None
    env: dict[str, str] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        return self.pid > 0 and self.exit_status is None

    def log_tail(self, lines: int = 3) -> str:
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.strip().splitlines()[-lines:])


class Processes:
    """`with Processes() as processes: processes.start(…)`."""

    def __init__(self) -> None:
        environment = dict(os.environ) | {ENVIRONMENT_VARIABLE: "1"}
        self._zygote = subprocess.Popen(
            [sys.executable, "-m", "barnabas.cli._zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
        self._lock = threading.RLock()
        self._buffer = b""
        self._servers: dict[str, ServerProcess] = {}
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, name: str) -> ServerProcess:
        return self._servers[name]

    # -- start ----------------------------------------------------------------------------------------------------------

    def start(
        self,
        name: str,
        entry: str,
        settings: Mapping[str, Any],
        *,
        log: Path,
        stop_order: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> ServerProcess:
        """Begin to start; `wait_ready` waits. A server of that name must not be running."""
        with self._lock:
            known = self._servers.get(name)
            if known is not None and known.running:
                raise ProcessFailed(f"{name} is running already")
            server = ServerProcess(name, log, entry, dict(settings), stop_order, env=dict(env or {}))
            self._servers[name] = server
            self._command(
                {
                    "op": "start",
                    "name": name,
                    "entry": entry,
                    "settings": server.settings,
                    "log": str(log),
                    "stop_order": stop_order,
                    "env": server.env,
                }
            )
            return server

    def restart(self, name: str) -> ServerProcess:
        """Start a server that has ended again, with the settings that it had."""
        was = self._servers[name]
        return self.start(name, was.entry, was.settings, log=was.log, stop_order=was.stop_order, env=was.env)

    def remove_at_exit(self, path: Path) -> None:
        """A folder that goes with the processes, however this process ends."""
        with self._lock:
            self._command({"op": "remove_at_exit", "path": str(path)})

    def wait_ready(self, names: Iterable[str], timeout_s: float) -> None:
        wanted = [self._servers[name] for name in names]
        deadline_s = time.monotonic() + timeout_s
        while True:
            ended = [server for server in wanted if server.exit_status is not None]
            if ended:
                raise ProcessFailed(f"{ended[0].name} did not start: {ended[0].log_tail()}")
            waiting = [server for server in wanted if server.facts is None]
            if not waiting:
                return
            if not self.wait_event(deadline_s - time.monotonic()):
                raise ProcessFailed(f"{waiting[0].name} was not ready within {timeout_s:g} s: {waiting[0].log_tail()}")

    # -- stop -----------------------------------------------------------------------------------------------------------

    def signal(self, name: str, number: int) -> None:
        """SIGSTOP, SIGCONT, SIGKILL, …; nothing if it has ended."""
        with self._lock:
            self._drain()
            server = self._servers[name]
            if server.running:
                os.kill(server.pid, number)

    def stop(self, name: str, timeout_s: float = 30.0) -> int:
        """SIGTERM, and wait. Its exit status."""
        self.signal(name, signal.SIGTERM)
        return self.wait_exit(name, timeout_s)

    def kill(self, name: str, timeout_s: float = 10.0) -> int:
        """SIGKILL, and wait."""
        self.signal(name, signal.SIGKILL)
        return self.wait_exit(name, timeout_s)

    def wait_exit(self, name: str, timeout_s: float) -> int:
        server = self._servers[name]
        deadline_s = time.monotonic() + timeout_s
        while server.exit_status is None:
            if not self.wait_event(deadline_s - time.monotonic()):
                raise ProcessFailed(f"{name} did not end within {timeout_s:g} s: {server.log_tail()}")
        return server.exit_status

    def close(self) -> None:
        """Stop all, brokers before the coordinator, and wait for it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            assert self._zygote.stdin is not None and self._zygote.stdout is not None
            self._zygote.stdin.close()
            while self._zygote.stdout.read(65536):
                continue
            self._zygote.wait()
            self._zygote.stdout.close()

    # -- events ---------------------------------------------------------------------------------------------------------

    @property
    def events_fd(self) -> int:
        """Readable when something has happened; then call `wait_event(0)`."""
        assert self._zygote.stdout is not None
        return self._zygote.stdout.fileno()

    def wait_event(self, timeout_s: float) -> bool:
        """Whether something happened in time; what it was is in the `ServerProcess`es."""
        with self._lock:
            readable, _, _ = select.select([self.events_fd], [], [], max(timeout_s, 0))
            if readable:
                self._read()
            return bool(readable)

    def _drain(self) -> None:
        while self.wait_event(0):
            continue

    def _read(self) -> None:
        data = os.read(self.events_fd, 65536)
        if not data:
            raise ProcessFailed("the process that starts the servers has ended")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._event(json.loads(line))

    def _event(self, event: dict[str, Any]) -> None:
        server = self._servers[event["name"]]
        if event["event"] == "started":
            server.pid = event["pid"]
        elif event["event"] == "ready":
            server.facts = event
        elif event["event"] == "exited" and event["pid"] == server.pid:
            server.exit_status = event["status"]

    def _command(self, command: Mapping[str, Any]) -> None:
        assert self._zygote.stdin is not None
        try:
            self._zygote.stdin.write(json.dumps(command).encode() + b"\n")
        except BrokenPipeError:
            raise ProcessFailed("the process that starts the servers has ended") from None
