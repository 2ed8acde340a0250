"""Limits the size of requests to ZooKeeper.

A server closes the connection of a client that sends more than its `jute.maxbuffer`, 1 MiB by default, and a client cannot
query that limit. If clients of the broker choose the size of the data (settings, quotas, credentials, ACLs, tokens, links), too
large data is refused before it is sent. The assignment of a topic may be larger, since an operator may have raised
`jute.maxbuffer` for it: it is refused after it has lost its connection several times, and then at once for a while.

Owner: the event loop. Pure: time is given.
"""

from typing import Final

from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Check, Create, Multi, MultiRead, Operation, SetData
from barnabas.broker.zookeeper_client.zk_errors import TooLarge

#: The largest znode with data that clients choose. ZooKeeper's default `jute.maxbuffer` is 1,048,575, including the request.
CHOSEN_BYTES_MAX: Final = 1_000_000
#: A request of this size that has lost its connection so often is not sent again: it would break every connection.
_LARGE_BYTES: Final = 900_000
_LOSSES_MAX: Final = 3
#: How long requests of a size that broke connections are refused at once. An operator may raise `jute.maxbuffer` meanwhile.
_REMEMBERED_S: Final = 600.0

_CHOSEN: Final = tuple(
    f"{root}/" for root in (paths.CONFIG, paths.ACL_LITERAL, paths.ACL_EXTENDED, paths.DELEGATION_TOKENS, paths.LINKS)
)


def size_of(operation: Operation | MultiRead | Check) -> int:
    """Return about the number of bytes that the operation takes on the wire."""
    if isinstance(operation, Multi | MultiRead):
        return sum(map(size_of, operation.operations))
    return len(operation.path) + len(getattr(operation, "data", None) or b"") + 64


def check_fits(path: str, data: bytes) -> None:
    """Check whether a write would be accepted, without writing.

    :raises TooLarge: if the session would refuse to write `data` there.
    """
    if _is_chosen_too_large(SetData(path, data)):
        raise TooLarge(path, len(data))


def _is_chosen_too_large(operation: Operation) -> bool:
    return (
        isinstance(operation, Create | SetData)
        and size_of(operation) > CHOSEN_BYTES_MAX
        and operation.path.startswith(_CHOSEN)
    )


class RequestSizes:
    """What one session has learned about ZooKeeper's limit."""

    def __init__(self) -> None:
        self._refused_bytes: int | None = None
        self._until_s = 0.0

    def refuses(self, operation: Operation, now_s: float) -> bool:
        """Whether the request must not be sent at all."""
        if _is_chosen_too_large(operation):
            return True
        limit = self._refused_bytes
        return limit is not None and now_s < self._until_s and size_of(operation) >= limit

    def is_hopeless(self, operation: Operation | MultiRead, losses: int, now_s: float) -> bool:
        """Whether a request that has lost its connection so often is too large. Then others of its size are refused too."""
        size = size_of(operation)
        if losses < _LOSSES_MAX or size < _LARGE_BYTES:
            return False
        self._refused_bytes, self._until_s = size, now_s + _REMEMBERED_S
        return True
