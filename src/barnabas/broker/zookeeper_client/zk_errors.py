"""Errors of ZooKeeper, as exceptions."""

from barnabas.base.errors import BarnabasError, ErrorCode, Refused
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import (
    Multi,
    Operation,
    Result,
    ZkCode,
)


class ZkError(BarnabasError):
    """ZooKeeper refused an operation."""

    code = ZkCode.REFUSED


class NoNode(ZkError):
    code = ZkCode.NO_NODE


class NodeExists(ZkError):
    code = ZkCode.NODE_EXISTS


class BadVersion(ZkError):
    code = ZkCode.BAD_VERSION


class NotEmpty(ZkError):
    code = ZkCode.NOT_EMPTY


class NotAuthorized(ZkError):
    code = ZkCode.NO_AUTH


class SessionExpired(ZkError):
    """The session is over; its ephemerals are gone."""


class ConnectionLost(ZkError):
    """No connection within `zookeeper.connection.timeout.ms`, or the connection was lost."""


class TooLarge(Refused):
    """A request has more bytes than ZooKeeper accepts. The client that chose the size gets this error."""

    def __init__(self, path: str, size_bytes: int) -> None:
        is_of_settings = path.startswith((paths.config_type(paths.TOPICS), paths.config_type(paths.BROKERS_ENTITY)))
        super().__init__(
            ErrorCode.INVALID_CONFIG if is_of_settings else ErrorCode.INVALID_REQUEST,
            f"{path} would have {size_bytes:,} bytes: ZooKeeper accepts about 1,000,000 in one request (jute.maxbuffer)",
        )


ERRORS: dict[ZkCode, type[ZkError]] = {
    error.code: error for error in (NoNode, NodeExists, BadVersion, NotEmpty, NotAuthorized)
}


def checked(operation: Operation, result: Result) -> Result:
    """Return the result, or raise its exception."""
    if result.ok:
        return result
    if result.code is ZkCode.TOO_LARGE:
        raise TooLarge(*_largest(operation))
    where = getattr(operation, "path", None) or "a transaction"
    raise ERRORS.get(result.code, ZkError)(f"{where}: {result.code.value}")


def _largest(operation: Operation) -> tuple[str, int]:
    """Return the path with the most data, and the size of that data."""
    parts = operation.operations if isinstance(operation, Multi) else (operation,)
    sizes = {part.path: len(getattr(part, "data", None) or b"") for part in parts}
    path = max(sizes, key=sizes.__getitem__)
    return path, sizes[path]
