"""Start ZooKeeper and brokers as forked children: modules are imported once, so a child starts in milliseconds.

A separate process (`python -m barnabas.cli.launcher`), so that its users (`barnabas up`, a test with threads) never fork
themselves. `cli.fork_server` starts it. It reads one JSON command per line and writes one JSON event per line:

    {"start": "7", "kind": "broker", "arguments": [...], "log": "/path",
     "environment": {...}, "folder": "/path", "open_files": [1024, 4096]}           start a child
    {"remove": "/path"}                                                             delete this folder at the end
    {"removed": "/path"}                                                            this folder is already deleted
    {"event": "started", "name": "7", "pid": 4711}
    {"event": "ready", "name": "7", "line": "ready broker=1 …"}                     its first line of output
    {"event": "exited", "name": "7", "code": 0}                                     negative: the signal that ended it

It takes commands while it imports: ZooKeeper needs few modules and starts meanwhile. When its standard input closes (its
parent has ended in any way), it ends its children and itself, so no orphans remain.
"""

import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from barnabas.base.host import kernel
from barnabas.base.host.process_title import set_title

#: How long children may take to stop after the parent has ended.
STOP_TIMEOUT_S = 20.0
_READ_BYTES = 65536
#: Imported in this order; each takes at most about 100 ms.
IMPORTS = (
    "barnabas.base.host.kernel",
    "barnabas.zookeeper.service",
    "barnabas.broker.zookeeper_client.kazoo_client",
    "barnabas.broker.storage.manager",
    "barnabas.broker.replication.manager",
    "barnabas.broker.controller.driver",
    "barnabas.broker.groups.coordinator",
    "barnabas.broker.process",
)
#: Kinds of children that need only the first imports.
STARTS_EARLY = frozenset({"zookeeper"})


@dataclass(slots=True)
class _Child:
    name: str
    kind: str
    pid: int
    #: Readable when the child has ended.
    end: int
    #: The child's standard output, until the child has reported that it is ready; then -1.
    output: int
    said: bytes = b""


class Launcher:
    def __init__(self, commands_fd: int, events_fd: int) -> None:
        self._commands_fd = commands_fd
        self._events_fd = events_fd
        self._pending = b""
        #: Start commands that wait for the imports; None once everything is imported.
        self._waiting: list[dict[str, Any]] | None = []
        self._poll = select.poll()
        self._poll.register(commands_fd, select.POLLIN)
        self._children: dict[int, _Child] = {}
        self._doomed: dict[str, None] = {}

    def prepare(self, steps: Iterable[Callable[[], object]]) -> bool:
        """Import what children need, and process commands after each step. Return False if the commands have ended."""
        for step in steps:
            step()
            if not self._look(timeout_ms=0):
                return False
        waiting, self._waiting = self._waiting or [], None
        for command in waiting:
            self._start(command)
        return True

    def run(self) -> None:
        self._tell(event="up")
        while self._look():
            pass

    def _look(self, timeout_ms: int | None = None) -> bool:
        """Process events, waiting up to `timeout_ms`. Return False if the commands have ended; then all children have ended."""
        poll = self._poll
        for child in self._children.values():
            poll.register(child.end, select.POLLIN)
            if child.output >= 0:
                poll.register(child.output, select.POLLIN)
        for fd, _ in poll.poll(timeout_ms):
            if fd != self._commands_fd:
                self._look_at(fd, poll)
            elif not self._read_commands():
                self._end_children()
                for folder in self._doomed:
                    shutil.rmtree(folder, ignore_errors=True)
                return False
        return True

    def _read_commands(self) -> bool:
        data = os.read(self._commands_fd, _READ_BYTES)
        if not data:
            return False
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if "remove" in command:
                self._doomed[command["remove"]] = None
            elif "removed" in command:
                self._doomed.pop(command["removed"], None)
            elif self._waiting is None or command["kind"] in STARTS_EARLY:
                self._start(command)
            else:
                self._waiting.append(command)
        return True

    def _start(self, command: dict[str, Any]) -> None:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _become(command, writer)
        os.close(writer)
        child = _Child(command["start"], command["kind"], pid, kernel.watch_child(pid), reader)
        self._children[pid] = child
        self._tell(event="started", name=child.name, pid=pid)

    def _look_at(self, fd: int, poll: "select.poll") -> None:
        child = next((c for c in self._children.values() if fd in (c.end, c.output)), None)
        if child is None:
            return
        if child.output >= 0:
            self._read_output(child, poll)
        if fd == child.end:
            _, status = os.waitpid(child.pid, 0)
            poll.unregister(child.end)
            os.close(child.end)
            if child.output >= 0:
                poll.unregister(child.output)
                os.close(child.output)
            del self._children[child.pid]
            self._tell(event="exited", name=child.name, code=os.waitstatus_to_exitcode(status))

    def _read_output(self, child: _Child, poll: "select.poll") -> None:
        if not select.select([child.output], [], [], 0)[0]:
            return
        data = os.read(child.output, _READ_BYTES)
        child.said += data
        if b"\n" in child.said:
            self._tell(event="ready", name=child.name, line=child.said.split(b"\n", 1)[0].decode())
        if b"\n" in child.said or not data:
            poll.unregister(child.output)
            os.close(child.output)
            child.output = -1

    def _end_children(self) -> None:
        """End brokers first, then ZooKeeper, which brokers need for a clean stop. Kill a child that does not stop in time."""
        for is_zookeeper in (False, True):
            group = [c for c in self._children.values() if (c.kind == "zookeeper") == is_zookeeper]
            for child in group:
                os.kill(child.pid, signal.SIGCONT)
                os.kill(child.pid, signal.SIGTERM)
            for child in group:
                if not select.select([child.end], [], [], STOP_TIMEOUT_S)[0]:
                    os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)

    def _tell(self, **event: object) -> None:
        data = json.dumps(event).encode() + b"\n"
        try:
            os.write(self._events_fd, data)
        except BrokenPipeError:
            return  # the parent has closed the pipe, so the commands end soon


def _become(command: dict[str, Any], output: int) -> NoReturn:
    """Run the server in the child; never return to the launcher's code."""
    code = 1
    try:
        gc.enable()  # the launcher disables it while it imports
        os.setsid()  # Ctrl-C in a terminal must reach only the parent, which stops its children in order
        os.environ.clear()
        os.environ.update(command["environment"], BARNABAS_PARENT_DEATH_SIGNAL="1")
        os.chdir(command["folder"])
        resource.setrlimit(resource.RLIMIT_NOFILE, command["open_files"])
        log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(log, 2)
        for fd in (log, null, output):
            os.close(fd)
        _name_process(command["kind"], command["arguments"])
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        code = _serve(command["kind"], command["arguments"])
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _name_process(kind: str, arguments: list[str]) -> None:
    """Name the process `barnabas broker-1 /data`, by its settings file, or `barnabas zookeeper /data`, by its data folder."""
    path = arguments[arguments.index("--data") + 1] if "--data" in arguments else arguments[0]
    folder, _, file = path.rpartition("/")
    name = file.removesuffix(".properties") if kind == "broker" else kind
    set_title(f"barnabas {name} {folder}".rstrip(), short=name)


def _serve(kind: str, arguments: list[str]) -> int:
    if kind in ("zookeeper", "schema-registry", "console", "tables"):
        from barnabas.cli.main import app

        app([kind, *arguments])
    from barnabas.broker import process

    return process.main(arguments)


def _warm_up() -> None:
    from barnabas.broker.process import warm_up

    warm_up()
    # Freeze all objects, so that garbage collection does not unshare memory pages.
    gc.collect()
    gc.freeze()
    gc.enable()


def main() -> None:
    gc.disable()  # imports create no garbage, and collecting takes an eighth of the time
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    commands, events = os.dup(0), os.dup(1)
    os.set_inheritable(commands, False)
    os.set_inheritable(events, False)
    set_title("barnabas launcher", short="barnabas")
    launcher = Launcher(commands, events)
    if launcher.prepare([*(partial(importlib.import_module, name) for name in IMPORTS), _warm_up]):
        launcher.run()


if __name__ == "__main__":
    main()
