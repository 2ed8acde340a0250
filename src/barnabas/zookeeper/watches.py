"""Which clients watch which paths. Pure: a trigger returns the clients, and the listener notifies them.

A table maps a path to its watchers and their modes; the tree has one table for data and one for children.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from barnabas.zookeeper.acl import Identity
from barnabas.zookeeper.wire import Event


class Client:
    """A connection as the machine knows it: its session and its identities. Its watches end with it."""

    __slots__ = ("__weakref__", "identities", "session_id", "watched_bytes")

    def __init__(self) -> None:
        self.session_id = 0
        self.identities: list[Identity] = []
        #: Memory that its watches take.
        self.watched_bytes = 0


#: Modes of a watch on a path. They are added, because a client can set a standard watch besides a persistent one.
STANDARD, PERSISTENT, RECURSIVE = 1, 2, 4


#: Memory of a watch besides its path: entries in two tables.
WATCH_BYTES = 160


class WatchEvent(NamedTuple):
    """One event for all of `clients`: encoded once, sent to each."""

    event: Event
    path: str
    clients: list[Client]


def ancestors(path: str) -> Iterator[str]:
    """Yield the parent, its parent, … up to `/`."""
    while path != "/":
        path = path[: path.rfind("/")] or "/"
        yield path


class WatchTable:
    """Invariant: `_by_path[p][c]` exists exactly when `p in _by_client[c]`; no inner container is empty."""

    def __init__(self) -> None:
        self._by_path: dict[str, dict[Client, int]] = {}
        self._by_client: dict[Client, set[str]] = {}
        #: Number of recursive watches. While it is 0, a trigger does not walk up the path.
        self._recursive = 0

    def add(self, path: str, client: Client, mode: int = STANDARD) -> None:
        watchers = self._by_path.setdefault(path, {})
        held = watchers.get(client, 0)
        if mode & ~held & RECURSIVE:
            self._recursive += 1
        watchers[client] = held | mode
        if not held:
            self._by_client.setdefault(client, set()).add(path)
            client.watched_bytes += len(path) + WATCH_BYTES

    def remove(self, path: str, client: Client) -> bool:
        watchers = self._by_path.get(path)
        if watchers is None or client not in watchers:
            return False
        self._drop(path, watchers, client)
        self._forget(path, client)
        return True

    def remove_client(self, client: Client) -> None:
        for path in self._by_client.pop(client, ()):
            client.watched_bytes -= len(path) + WATCH_BYTES
            self._drop(path, self._by_path[path], client)

    def _drop(self, path: str, watchers: dict[Client, int], client: Client) -> None:
        if watchers.pop(client) & RECURSIVE:
            self._recursive -= 1
        if not watchers:
            del self._by_path[path]

    def _forget(self, path: str, client: Client) -> None:
        paths = self._by_client[client]
        paths.remove(path)
        client.watched_bytes -= len(path) + WATCH_BYTES
        if not paths:
            del self._by_client[client]

    def contains(self, path: str, client: Client) -> bool:
        return client in self._by_path.get(path, ())

    def trigger(self, path: str, event: Event) -> list[Client]:
        """Return the clients that `event` at `path` concerns, each once; standard watches are used up."""
        if not self._by_path:
            return []
        found: dict[Client, None] = {}
        watchers = self._by_path.get(path)
        # A recursive watch gets an event for each child, and so no "children changed".
        deaf = RECURSIVE if event is Event.CHILDREN_CHANGED else 0
        if watchers is not None:
            for client, mode in list(watchers.items()):
                if mode & ~deaf:
                    found[client] = None
                if mode == STANDARD:
                    del watchers[client]
                    self._forget(path, client)
                elif mode & STANDARD:
                    watchers[client] = mode & ~STANDARD
            if not watchers:
                del self._by_path[path]
        if self._recursive and not deaf:
            for parent in ancestors(path):
                for client, mode in self._by_path.get(parent, {}).items():
                    if mode & RECURSIVE:
                        found[client] = None
        return list(found)

    @property
    def watch_count(self) -> int:
        return sum(map(len, self._by_client.values()))

    @property
    def path_count(self) -> int:
        return len(self._by_path)

    @property
    def client_count(self) -> int:
        return len(self._by_client)

    def by_path(self) -> dict[str, Collection[Client]]:
        return {path: list(watchers) for path, watchers in self._by_path.items()}

    def by_client(self) -> dict[Client, Collection[str]]:
        return {client: list(paths) for client, paths in self._by_client.items()}
