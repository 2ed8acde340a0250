"""Clusters that `barnabas up` runs on this machine: where they register, and how the other commands talk to them.

Each cluster has a file and a Unix socket, both named by its process id, in a folder that only this user can open:
`$XDG_RUNTIME_DIR/barnabas`, or one in the temporary folder. The socket takes one line of JSON and answers with one.
"""

import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from barnabas.base.host import kernel
from barnabas.cli.local_cluster import ClusterFailed, LocalCluster

if TYPE_CHECKING:
    from barnabas.cli.faults.book import FaultBook
    from barnabas.cli.faults.endpoint import FaultEndpoint

#: Limit for a restart: a clean stop and a start.
_ANSWER_TIMEOUT_S: Final = 180.0
_DOWN_TIMEOUT_S: Final = 90.0
_CONNECT_TIMEOUT_S: Final = 10.0
_REQUEST_BYTES_MAX: Final = 65536


class ClusterEnded(ClusterFailed):
    """The cluster was running, and ended before it answered."""


def no_cluster() -> ClusterFailed:
    return ClusterFailed("no cluster of `barnabas up` runs here; `barnabas up --detach` starts one")


def runtime_folder() -> Path:
    """:raises ClusterFailed: if other users can write to it, because they could send commands."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given and Path(given).is_dir():
        folder = Path(given) / "barnabas"
    else:
        folder = Path(tempfile.gettempdir()) / f"barnabas-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ClusterFailed(
            f"{folder} must be a folder of yours that no other user can open: remove it, or chmod 700 it"
        )
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The registration of one `barnabas up`."""

    pid: int
    folder: str
    bootstrap: str
    zookeeper: str
    brokers: int
    secure: bool
    started_s: float
    schema_registry: str | None = None
    console: str | None = None
    #: Where faults are asked for over HTTP, and what lets a program in. This file is the user's alone.
    faults: str | None = None
    faults_token: str | None = None

    @classmethod
    def of(cls, document: dict[str, Any]) -> "Running":
        """Read the registration of any release. Unknown or missing fields do not matter."""
        return cls(**{field.name: document[field.name] for field in dataclasses.fields(cls) if field.name in document})

    @property
    def socket_path(self) -> Path:
        return runtime_folder() / f"{self.pid}.sock"

    def ask(self, **command: object) -> Any:
        """:raises ClusterFailed: if the cluster refuses the command or does not answer."""
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(_CONNECT_TIMEOUT_S)
                sock.connect(str(self.socket_path))
                sock.settimeout(_ANSWER_TIMEOUT_S)
                sock.sendall(json.dumps(command).encode() + b"\n")
                line = sock.makefile("rb").readline()
        except (ConnectionError, FileNotFoundError):
            line = b""
        except OSError as error:
            raise ClusterFailed(
                f"the cluster on {self.folder} (process {self.pid}) does not answer: {error}"
            ) from error
        if not line:
            raise ClusterEnded(f"the cluster on {self.folder} (process {self.pid}) ended before it answered")
        answer = json.loads(line)
        if "error" in answer:
            raise ClusterFailed(answer["error"])
        return answer["answer"]

    def stop(self) -> None:
        """Stop it as Ctrl-C does, and wait until it has ended."""
        try:
            os.kill(self.pid, signal.SIGTERM)
            has_ended = kernel.wait_until_ended(self.pid, _DOWN_TIMEOUT_S)
        except ProcessLookupError:
            return
        if not has_ended:
            raise ClusterFailed(
                f"the cluster on {self.folder} has not stopped within {_DOWN_TIMEOUT_S:g} s; "
                f"`kill -9 {self.pid}` ends it without waiting for its brokers"
            )


def running_clusters() -> list[Running]:
    """Return the running clusters, the oldest first. The files of killed ones are removed."""
    found: list[Running] = []
    for file in sorted(runtime_folder().glob("*.json")):
        with contextlib.suppress(FileNotFoundError):
            try:
                each = Running.of(json.loads(file.read_text()))
            except (TypeError, ValueError) as error:
                sys.stderr.write(
                    f"warning: {file} is left out; another version of barnabas may have written it: {error}\n"
                )
                continue
            if _answers(each):
                found.append(each)
            else:
                _forget(file)
    _remove_if_empty()
    return sorted(found, key=lambda each: each.started_s)


def _answers(cluster: Running) -> bool:
    """Check the socket, because another process may have the process id by now."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_CONNECT_TIMEOUT_S)
        try:
            sock.connect(str(cluster.socket_path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except TimeoutError:
            return True  # it is busy
    return True


def _forget(file: Path) -> None:
    for suffix in (".json", ".sock", ".log"):
        file.with_suffix(suffix).unlink(missing_ok=True)


def _remove_if_empty() -> None:
    with contextlib.suppress(OSError):
        runtime_folder().rmdir()


def on_folder(clusters: list[Running], data: Path | None) -> list[Running]:
    """Return the clusters that `--data` selects; all if it was not given."""
    return clusters if data is None else [each for each in clusters if Path(each.folder) == data.absolute()]


def the_cluster(data: Path | None) -> Running:
    """Return the only cluster, or the one on this folder. :raises ClusterFailed: if there is none, or more than one."""
    clusters = running_clusters()
    chosen = on_folder(clusters, data)
    if len(chosen) == 1:
        return chosen[0]
    if not clusters:
        raise no_cluster()
    folders = "".join(f"\n  --data {each.folder}" for each in clusters)
    if not chosen:
        raise ClusterFailed(f"no cluster runs on {data}; there is:{folders}")
    raise ClusterFailed(f"{len(clusters)} clusters run here: choose one of{folders}")


# -- in `barnabas up` -----------------------------------------------------------------------------------------------------


class Reception:
    """Takes commands for a cluster. Owner: the thread that owns the cluster; it calls `serve` instead of sleeping."""

    def __init__(self, cluster: LocalCluster, *, faults_port: int | None = None) -> None:
        """`faults_port`: serve HTTP for faults there. The cluster must take them."""
        self._cluster = cluster
        self._faults_port = faults_port
        self._book: FaultBook | None = None
        self._endpoint: FaultEndpoint | None = None
        self._file = runtime_folder() / f"{os.getpid()}.json"
        self._listener = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> Self:
        if self._faults_port is not None:
            self._take_faults(self._faults_port)
        path = self._file.with_suffix(".sock")
        path.unlink(missing_ok=True)
        self._listener.bind(str(path))
        self._listener.listen(8)
        # Write the whole file or nothing: other processes may read it at any time.
        unfinished = self._file.with_suffix(".new")
        unfinished.write_text(json.dumps(asdict(self._describe())))
        unfinished.rename(self._file)
        if self._endpoint is not None:
            self._endpoint.__enter__()
        return self

    def _take_faults(self, port: int) -> None:
        from barnabas.cli.faults.book import FaultBook
        from barnabas.cli.faults.cluster import FaultyCluster
        from barnabas.cli.faults.endpoint import TOKEN_VARIABLE, FaultEndpoint

        assert isinstance(self._cluster, FaultyCluster)
        self._book = FaultBook(self._cluster)
        self._endpoint = FaultEndpoint(
            lambda **command: self._describe().ask(**command), port=port, token=os.environ.get(TOKEN_VARIABLE)
        )

    @property
    def faults_url(self) -> str | None:
        return None if self._endpoint is None else self._endpoint.url

    def __exit__(self, *exc: object) -> None:
        if self._endpoint is not None:
            self._endpoint.__exit__(*exc)
        self._listener.close()
        _forget(self._file)
        _remove_if_empty()

    def _describe(self) -> Running:
        cluster = self._cluster
        return Running(
            pid=os.getpid(),
            folder=str(cluster.folder),
            bootstrap=cluster.bootstrap,
            zookeeper=cluster.zookeeper_connect,
            brokers=cluster.brokers,
            secure=cluster.secure,
            schema_registry=cluster.schema_registry_url if cluster.schema_registry else None,
            console=cluster.console_url if cluster.console else None,
            faults=self.faults_url,
            faults_token=None if self._endpoint is None else self._endpoint.token,
            started_s=time.time(),
        )

    def serve(self, seconds: float) -> None:
        """Execute a command, if one arrives within this time."""
        if not select.select([self._listener], [], [], seconds)[0]:
            return
        connection, _ = self._listener.accept()
        with connection, contextlib.suppress(OSError):  # the client may have disconnected
            line = _command_line(connection)
            if line:
                connection.sendall(json.dumps(self._answer(line)).encode() + b"\n")

    def _answer(self, line: bytes) -> dict[str, object]:
        """Execute one command. A line that is not a command gets an error, and the cluster continues."""
        try:
            command = json.loads(line)
        except (ValueError, RecursionError):
            return {"error": "a command is one line of JSON"}
        try:
            match command:
                case {"do": "status"}:
                    return {"answer": [_broker(self._cluster, each) for each in self._cluster.broker_ids]}
                case {"do": "restart", "broker": int(broker)}:
                    return {"answer": _restart(self._cluster, broker)}
                case {"do": "snapshot", "action": str(action), "name": name}:
                    return {"answer": _snapshot(self._cluster, action, name)}
                case {"do": "fault", "action": str(action)}:
                    return {"answer": self._fault(action, command)}
                case {"do": unknown}:
                    return {"error": f"this cluster runs another version and does not support {unknown!r}"}
                case _:
                    return {"error": 'a command is a JSON object with "do"'}
        except (ClusterFailed, ValueError) as error:
            return {"error": str(error)}

    def _fault(self, action: str, command: Mapping[str, object]) -> object:
        if self._book is None:
            raise ClusterFailed("this cluster takes no faults: start it with `barnabas up --faults`")
        match action, command:
            case "list", _:
                return self._book.shown()
            case "add", {"fault": fault}:
                return self._book.add(fault)
            case "clear", {"number": int() | None as number}:
                self._book.clear(number)
                return {}
        raise ClusterFailed(f"this cluster does not know the action {action!r}: it is of another version")


def _command_line(connection: socket.socket) -> bytes:
    """Up to the end of the line. The cluster is not looked after meanwhile. :raises OSError: if it does not come in time."""
    deadline_s = time.monotonic() + _CONNECT_TIMEOUT_S
    data = b""
    while b"\n" not in data and len(data) < _REQUEST_BYTES_MAX:
        connection.settimeout(max(0.001, deadline_s - time.monotonic()))
        more = connection.recv(_REQUEST_BYTES_MAX - len(data))
        if not more:
            break
        data += more
    connection.settimeout(_CONNECT_TIMEOUT_S)
    return data.partition(b"\n")[0]


def _broker(cluster: LocalCluster, broker_id: int) -> Mapping[str, object]:
    member = cluster.member(broker_id)
    return {
        "id": broker_id,
        "address": cluster.address(broker_id),
        "pid": member.pid if member.running else None,
        "exit": member.exit_code,
        "log": str(member.log),
    }


def _restart(cluster: LocalCluster, broker_id: int) -> Mapping[str, object]:
    """Restart a broker, or start one that has ended."""
    if cluster.member(broker_id).running:
        cluster.terminate(broker_id)
    cluster.start_broker(broker_id)
    return _broker(cluster, broker_id)


def _snapshot(cluster: LocalCluster, action: str, name: object) -> object:
    from barnabas.cli import snapshots

    if action == "list":
        return [asdict(each) for each in snapshots.saved(cluster)]
    if not isinstance(name, str):
        raise ClusterFailed("a snapshot needs a name")
    match action:
        case "save":
            snapshots.refuse_links(_links(cluster))
            return asdict(snapshots.save(cluster, name))
        case "restore":
            return {"seconds": snapshots.restore(cluster, name)}
        case "delete":
            snapshots.delete(cluster, name)
            return {}
    raise ClusterFailed(f"this cluster does not know the action {action!r}: it is of another version")


def _links(cluster: LocalCluster) -> list[str]:
    from barnabas.client.admin.links import describe_links
    from barnabas.client.blocking import BlockingClient
    from barnabas.client.config import client_config

    with BlockingClient(client_config(cluster.bootstrap, cluster.client_settings("admin"))) as client:
        return [link.name for link in client.run(describe_links(client.core))]


# -- in the background ----------------------------------------------------------------------------------------------------


def detach(data: Path | None) -> int | None:
    """Fork. In the child return None: it continues in the background and writes to a log. In the parent return the exit code
    once the child is ready or has ended; the child's output was printed by then."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _go_to_background(writer, _log_of(os.getpid(), data))
        return None
    os.close(writer)
    return _wait_for(child, reader, _log_of(child, data))


def _log_of(pid: int, data: Path | None) -> Path:
    """Return the log for what `up` prints on a terminal. With `--data` it is in that folder, and deleted with it."""
    return data / "up.log" if data is not None else runtime_folder() / f"{pid}.log"


def _go_to_background(output: int, log: Path) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for source, target in ((null, 0), (output, 1), (errors, 2)):
        os.dup2(source, target)
        os.close(source)


def _wait_for(child: int, reader: int, log: Path) -> int:
    with open(reader, encoding="utf-8") as output:
        for line in output:
            sys.stdout.write(line)
            if line.startswith("ready "):
                return 0
    _, status = os.waitpid(child, 0)
    if log.exists():
        sys.stderr.write(log.read_text())
    if log.parent == runtime_folder():
        _forget(log)
    _remove_if_empty()
    return os.waitstatus_to_exitcode(status) or 1
