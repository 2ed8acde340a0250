"""ZooKeeper's shell: `ls`, `get`, `set`, `create`, … against any server, with the output of Kafka's `zookeeper-shell.sh`.

One line in, text out. Options are those of `zkCli`: `ls -R`, `get -s`, `create -e -s`, and so on.
"""

import argparse
import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadArgumentsError,
    BadVersionError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from kazoo.protocol.states import WatchedEvent, ZnodeStat
from kazoo.security import ACL, Id

from barnabas.base.errors import BarnabasError

_PERMISSIONS = {"r": 1, "w": 2, "c": 4, "d": 8, "a": 16}
#: zkCli prints permissions in this order.
_PERMISSION_ORDER = "cdrwa"

_REASONS: dict[type[KazooException], str] = {
    NoNodeError: "Node does not exist: {path}",
    NodeExistsError: "Node already exists: {path}",
    NotEmptyError: "Node not empty: {path}",
    BadVersionError: "version No is not valid : {path}",
    NoAuthError: "Insufficient permission : {path}",
    NoChildrenForEphemeralsError: "Ephemerals cannot have children: {path}",
    InvalidACLError: "Acl is not valid : {path}",
    BadArgumentsError: "Path is not valid : {path}",
    AuthFailedError: "Authentication failed",
    SessionExpiredError: "The session has expired",
    ConnectionLoss: "The connection was lost",
}

_EVENT_TYPES = {
    "CREATED": "NodeCreated",
    "DELETED": "NodeDeleted",
    "CHANGED": "NodeDataChanged",
    "CHILD": "NodeChildrenChanged",
}


class ShellError(BarnabasError):
    """A command that cannot be executed; the message is for the user."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ShellError(f"{message}\n{self.format_usage().strip()}")


def _parser(name: str, *flags: str, version: bool = False) -> _Parser:
    parser = _Parser(prog=name, add_help=False)
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    if version:
        parser.add_argument("-v", type=int, default=-1, metavar="version")
    parser.add_argument("path")
    return parser


def _time(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, tz=UTC).strftime("%a %b %d %H:%M:%S UTC %Y")


def format_stat(stat: ZnodeStat) -> str:
    return "\n".join(
        [
            f"cZxid = 0x{stat.czxid:x}",
            f"ctime = {_time(stat.ctime)}",
            f"mZxid = 0x{stat.mzxid:x}",
            f"mtime = {_time(stat.mtime)}",
            f"pZxid = 0x{stat.pzxid:x}",
            f"cversion = {stat.cversion}",
            f"dataVersion = {stat.version}",
            f"aclVersion = {stat.aversion}",
            f"ephemeralOwner = 0x{stat.ephemeralOwner:x}",
            f"dataLength = {stat.dataLength}",
            f"numChildren = {stat.numChildren}",
        ]
    )


def parse_acl(text: str) -> list[ACL]:
    """`world:anyone:r,digest:joe:hash=:cdrwa`"""
    entries = []
    for part in text.split(","):
        scheme, _, rest = part.partition(":")
        identity, _, letters = rest.rpartition(":")
        if not scheme or not letters or any(letter not in _PERMISSIONS for letter in letters):
            raise ShellError(f"{part} does not have the form scheme:id:perm, perm being letters of cdrwa")
        entries.append(ACL(sum(_PERMISSIONS[letter] for letter in set(letters)), Id(scheme, identity)))
    return entries


def format_acl(entry: ACL) -> str:
    letters = "".join(letter for letter in _PERMISSION_ORDER if entry.perms & _PERMISSIONS[letter])
    return f"'{entry.id.scheme},'{entry.id.id}\n: {letters}"


class Shell:
    """Owner: the caller's thread. Watch events arrive on kazoo's thread and use the same `write`."""

    def __init__(self, client: KazooClient, write: Callable[[str], None]) -> None:
        self._client = client
        self._write = write
        self.is_done = False
        self._commands: dict[str, Callable[[Sequence[str]], None]] = {
            "addauth": self._addauth,
            "create": self._create,
            "delete": self._delete,
            "deleteall": self._deleteall,
            "get": self._get,
            "getAcl": self._get_acl,
            "help": self._help,
            "ls": self._ls,
            "quit": self._quit,
            "set": self._set,
            "setAcl": self._set_acl,
            "stat": self._stat,
            "sync": self._sync,
            "watch": self._watch,
            "whoami": self._whoami,
        }

    def execute(self, words: Sequence[str]) -> None:
        """Execute one command, or raise `ShellError`."""
        if not words:
            return
        command = self._commands.get(words[0])
        if command is None:
            raise ShellError(f"Command not found: {words[0]} (try help)")
        try:
            command(words[1:])
        except KazooException as error:
            path = next((word for word in words[1:] if word.startswith("/")), "")
            reason = _REASONS.get(type(error))
            raise ShellError(reason.format(path=path) if reason else f"{type(error).__name__}: {error}") from error
        except ValueError as error:
            # kazoo checks paths before it sends requests.
            raise ShellError(str(error)) from error

    def execute_line(self, line: str) -> None:
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise ShellError(f"can't be read: {error}") from error
        self.execute(words)

    def _on_event(self, event: WatchedEvent) -> None:
        kind = _EVENT_TYPES.get(event.type, event.type)
        self._write(f"\nWATCHER::\n\nWatchedEvent state:SyncConnected type:{kind} path:{event.path}")

    # ---- commands -----------------------------------------------------------------------------------------------------

    def _ls(self, words: Sequence[str]) -> None:
        options = _parser("ls", "-s", "-w", "-R").parse_args(words)
        if options.R:
            for path in self._walk(options.path):
                self._write(path)
            return
        watch = self._on_event if options.w else None
        children, stat = self._client.get_children(options.path, watch=watch, include_data=True)
        self._write("[" + ", ".join(sorted(children)) + "]")
        if options.s:
            self._write(format_stat(stat))

    def _walk(self, path: str) -> list[str]:
        found, queue = [], [path]
        while queue:
            path = queue.pop(0)
            found.append(path)
            try:
                children = self._client.get_children(path)
            except NoNodeError:
                if len(found) == 1:
                    raise
                continue
            queue.extend(path.rstrip("/") + "/" + child for child in sorted(children))
        return sorted(found)

    def _get(self, words: Sequence[str]) -> None:
        options = _parser("get", "-s", "-w").parse_args(words)
        data, stat = self._client.get(options.path, watch=self._on_event if options.w else None)
        self._write("null" if data is None else data.decode("utf-8", "backslashreplace"))
        if options.s:
            self._write(format_stat(stat))

    def _stat(self, words: Sequence[str]) -> None:
        options = _parser("stat", "-w").parse_args(words)
        stat = self._client.exists(options.path, watch=self._on_event if options.w else None)
        if stat is None:
            raise ShellError(f"Node does not exist: {options.path}")
        self._write(format_stat(stat))

    def _set(self, words: Sequence[str]) -> None:
        parser = _parser("set", "-s", version=True)
        parser.add_argument("data")
        options = parser.parse_args(words)
        stat = self._client.set(options.path, options.data.encode(), version=options.v)
        if options.s:
            self._write(format_stat(stat))

    def _create(self, words: Sequence[str]) -> None:
        parser = _parser("create", "-s", "-e")
        parser.add_argument("data", nargs="?", default="")
        parser.add_argument("acl", nargs="?", type=parse_acl)
        options = parser.parse_args(words)
        path = self._client.create(
            options.path, options.data.encode(), acl=options.acl, ephemeral=options.e, sequence=options.s
        )
        self._write(f"Created {path}")

    def _delete(self, words: Sequence[str]) -> None:
        options = _parser("delete", version=True).parse_args(words)
        self._client.delete(options.path, version=options.v)

    def _deleteall(self, words: Sequence[str]) -> None:
        self._client.delete(_parser("deleteall").parse_args(words).path, recursive=True)

    def _get_acl(self, words: Sequence[str]) -> None:
        options = _parser("getAcl", "-s").parse_args(words)
        acl, stat = self._client.get_acls(options.path)
        for entry in acl:
            self._write(format_acl(entry))
        if options.s:
            self._write(format_stat(stat))

    def _set_acl(self, words: Sequence[str]) -> None:
        parser = _parser("setAcl", "-s", "-R", version=True)
        parser.add_argument("acl", type=parse_acl)
        options = parser.parse_args(words)
        if options.R:
            # Children first: a user who removes his own right from a parent could no longer reach them.
            for path in reversed(self._walk(options.path)):
                self._client.set_acls(path, options.acl)
            return
        stat = self._client.set_acls(options.path, options.acl, version=options.v)
        if options.s:
            self._write(format_stat(stat))

    def _addauth(self, words: Sequence[str]) -> None:
        if len(words) != 2:
            raise ShellError("usage: addauth scheme credentials")
        self._client.add_auth(words[0], words[1])

    def _sync(self, words: Sequence[str]) -> None:
        self._client.sync(_parser("sync").parse_args(words).path)
        self._write("Sync is OK")

    def _watch(self, words: Sequence[str]) -> None:
        """Follow a node, its data and its children until the shell ends. zkCli does not have this command."""
        path = _parser("watch").parse_args(words).path
        self._client.DataWatch(path)(self._on_data_of(path))
        if self._client.exists(path):
            self._client.ChildrenWatch(path)(lambda names: self._write(f"{path} children [{', '.join(sorted(names))}]"))

    def _on_data_of(self, path: str) -> Callable[[bytes | None, ZnodeStat | None], None]:
        def report(data: bytes | None, stat: ZnodeStat | None) -> None:
            value = (
                "is not there" if stat is None else f"version {stat.version} {(data or b'').decode('utf-8', 'replace')}"
            )
            self._write(f"{path} {value}")

        return report

    def _whoami(self, _words: Sequence[str]) -> None:
        for scheme, credentials in sorted(self._client.auth_data):
            self._write(f"{scheme}: {credentials.split(':', 1)[0]}")

    def _help(self, _words: Sequence[str]) -> None:
        self._write("commands: " + " ".join(sorted(self._commands)))

    def _quit(self, _words: Sequence[str]) -> None:
        self.is_done = True


def connect(address: str, *, timeout_s: float = 15.0, **options: Any) -> KazooClient:
    """Return a started client, or raise `ShellError` with one line if no server answers."""
    import logging

    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    client = KazooClient(address, timeout=30.0, **options)
    try:
        client.start(timeout_s)
    except client.handler.timeout_exception as error:
        client.close()
        raise ShellError(f"no ZooKeeper answers at {address}") from error
    return client
