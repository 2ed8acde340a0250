"""A process that starts servers by forking itself, and ends with them.

It imports the broker once, then forks a copy for each server: a start costs milliseconds, and the copies share the memory of
the code. Commands come as JSON lines on stdin, events go as JSON lines to stdout:

    {"op": "start", "name": "broker-1", "entry": "barnabas.cli._serve:broker", "settings": {…}, "log": "…"}
    {"op": "remove_at_exit", "path": "…"}
    → {"event": "started", "name": …, "pid": …}
    → {"event": "ready", "name": …, …}
    → {"event": "exited", "name": …, "pid": …, "status": …}

When stdin ends (whoever started it is gone, however it went) or on SIGTERM it stops the servers, those with
the highest `stop_order` first, and leaves. If it is killed itself, the kernel tells each server (see `runtime.parent`).

Single-threaded, and no event loop: a process that forks must be.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import sys
import time
from types import FrameType
from typing import Any

from barnabas.runtime import parent

#: How long a server may take to stop before it is killed.
_GRACE_S = 15.0
_PRELOAD = ("uvloop", "barnabas.broker", "barnabas.coordination.embedded.server")


class Zygote:
    def __init__(self) -> None:
        #: Servers that run: pid to (name, stop order). A higher order is stopped first.
        self._children: dict[int, tuple[str, int]] = {}
        self._remove: list[str] = []
        self._stopping = False

    def run(self) -> None:
        wake_in, wake_out = os.pipe()
        os.set_blocking(wake_in, False)
        os.set_blocking(wake_out, False)
        signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _no_op)
        signal.signal(signal.SIGTERM, self._on_term)
        # Ctrl-C in a terminal reaches the whole group: the one who started us decides what it means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        buffer = b""
        while not self._stopping:
            readable, _, _ = select.select([0, wake_in], [], [])
            if wake_in in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_in, 4096)
                self._reap()
            if 0 in readable:
                data = os.read(0, 65536)
                if not data:
                    break
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    self._command(json.loads(line), (wake_in, wake_out))
        self._stop_all()

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _command(self, command: dict[str, Any], close: tuple[int, int]) -> None:
        if command["op"] == "remove_at_exit":
            self._remove.append(command["path"])
            return
        pid = os.fork()
        if pid == 0:
            for descriptor in close:
                os.close(descriptor)
            _become(command)
        self._children[pid] = (command["name"], int(command.get("stop_order", 0)))
        _tell({"event": "started", "name": command["name"], "pid": pid})

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            name, _ = self._children.pop(pid)
            _tell({"event": "exited", "name": name, "pid": pid, "status": os.waitstatus_to_exitcode(status)})

    def _stop_all(self) -> None:
        """Brokers before the coordinator that they need in order to leave."""
        for order in sorted({order for _, order in self._children.values()}, reverse=True):
            group = [pid for pid, (_, own) in self._children.items() if own == order]
            for pid in group:
                os.kill(pid, signal.SIGTERM)
            deadline_s = time.monotonic() + _GRACE_S
            while any(pid in self._children for pid in group):
                self._reap()
                if time.monotonic() > deadline_s:
                    for pid in group:
                        if pid in self._children:
                            os.kill(pid, signal.SIGKILL)
                time.sleep(0.005)
        for path in self._remove:
            shutil.rmtree(path, ignore_errors=True)


def _no_op(number: int, frame: FrameType | None) -> None:
    """A handler must exist for the signal to wake `select`."""


def _tell(event: dict[str, object]) -> None:
    """One write: lines of several processes do not mix as long as they are short."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(event).encode() + b"\n")


def _become(command: dict[str, Any]) -> None:
    """In the child: its own session, its own log, and never back into the zygote's loop."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.environ[parent.ENVIRONMENT_VARIABLE] = "1"
        parent.die_with_parent()
        os.environ.update(command.get("env", {}))
        events = os.dup(1)
        os.set_inheritable(events, False)
        log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        name = command["name"]

        def ready(facts: dict[str, object]) -> None:
            with contextlib.suppress(BrokenPipeError):
                os.write(events, json.dumps({"event": "ready", "name": name, **facts}).encode() + b"\n")

        module, _, function = command["entry"].partition(":")
        getattr(importlib.import_module(module), function)(command["settings"], ready)
        status = 0
    except BaseException as error:
        _report(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _report(error: BaseException) -> None:
    """One line for what was foreseen, a traceback for a bug."""
    from barnabas.core.errors import BarnabasError

    if isinstance(error, SystemExit):
        return
    if isinstance(error, BarnabasError | OSError) and not isinstance(error, BaseExceptionGroup):
        sys.stderr.write(f"error: {error}\n")
        return
    import traceback

    traceback.print_exception(error)


def main() -> None:
    parent.die_with_parent()
    for module in _PRELOAD:
        importlib.import_module(module)
    # What is there now is there for good: keep the collector from touching (and so copying) its pages in the children.
    gc.collect()
    gc.freeze()
    Zygote().run()


if __name__ == "__main__":
    main()
