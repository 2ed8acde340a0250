"""The client side of the launcher: one launcher process forks all clusters of this process.

It starts with the first cluster and ends with this process, so only the first cluster waits for its imports. Processes that
were forked from this one, or that pytest-xdist started, have their own.
"""

import atexit
import contextlib
import itertools
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

#: How long running members may take to stop when this process ends.
END_TIMEOUT_S: Final = 60.0

_numbers = itertools.count()


@dataclass(slots=True)
class Member:
    """One process of a cluster."""

    name: str
    kind: str
    arguments: list[str]
    log: Path
    pid: int = 0
    ready_line: str | None = None
    #: None while it runs.
    exit_code: int | None = None
    paused: bool = False
    #: The launcher's name for it: several clusters have a broker-1.
    key: str = field(default_factory=lambda: str(next(_numbers)))

    @property
    def running(self) -> bool:
        return bool(self.pid) and self.exit_code is None


class ForkServer:
    """The launcher process, and the state that it has reported. Any thread."""

    def __init__(self) -> None:
        self.owner_pid = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "barnabas.cli.launcher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._members: dict[str, Member] = {}
        #: Whether a command was sent.
        self._is_used = False
        self.ended = False
        self._reader = threading.Thread(target=self._read, name="launcher events", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            with self._changed:
                self._apply(event)
                self._changed.notify_all()
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def _apply(self, event: dict[str, Any]) -> None:
        member = self._members.get(event.get("name", ""))
        if member is None:
            return
        match event["event"]:
            case "started":
                member.pid = event["pid"]
            case "ready":
                member.ready_line = event["line"]
            case "exited":
                member.exit_code = event["code"]
                del self._members[member.key]

    def remove_at_end(self, folder: Path) -> None:
        """Delete the folder when this process ends, even if it is killed: the launcher lives a moment longer."""
        self._send({"remove": str(folder)})

    def is_removed(self, folder: Path) -> None:
        """The folder was deleted by its owner."""
        self._send({"removed": str(folder)})

    def start(self, member: Member) -> None:
        """Start a process with this process's environment, folder and open-file limit, as if it were a child."""
        with self._changed:
            self._members[member.key] = member
        self._send(
            {
                "start": member.key,
                "kind": member.kind,
                "arguments": member.arguments,
                "log": str(member.log),
                "environment": dict(os.environ),
                "folder": os.getcwd(),  # noqa: PTH109
                "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
            }
        )

    def _send(self, command: Mapping[str, object]) -> None:
        assert self._process.stdin is not None
        data = json.dumps(command).encode() + b"\n"
        self._is_used = True
        # If the launcher has ended, `wait` notices it.
        with self._sending, contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: condition() or self.ended, timeout_s) and condition()

    def close(self) -> None:
        """End the running members, then the launcher."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if not self._is_used:
            self._process.kill()  # unused: do not wait for its imports
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(END_TIMEOUT_S)
        self._process.stdout.close()


_lock = threading.Lock()
_running: ForkServer | None = None


def fork_server() -> ForkServer:
    """Return the launcher of this process."""
    global _running
    with _lock:
        if _running is not None and _running.owner_pid == os.getpid() and not _running.ended:
            return _running
        _running = ForkServer()
        return _running


def end_fork_server() -> None:
    """End the launcher with everything that it started. The next cluster starts another one."""
    global _running
    with _lock:
        if _running is not None and _running.owner_pid == os.getpid():
            _running.close()
        _running = None


# Registered on import, not when the first cluster starts: later registrations run earlier, so clusters that stop at the end
# of the process still find their launcher.
atexit.register(end_fork_server)
