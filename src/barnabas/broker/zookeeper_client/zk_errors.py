"""What ZooKeeper refuses, as exceptions."""

from barnabas.base.errors import BarnabasError
from barnabas.broker.zookeeper_client.operations import (
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
    """No connection within `zookeeper.connection.timeout.ms`, or none any more."""


ERRORS: dict[ZkCode, type[ZkError]] = {
    each.code: each for each in (NoNode, NodeExists, BadVersion, NotEmpty, NotAuthorized)
}


def checked(operation: Operation, result: Result) -> Result:
    """The result, or the exception that it stands for."""
    if result.ok:
        return result
    where = getattr(operation, "path", None) or "a transaction"
    raise ERRORS.get(result.code, ZkError)(f"{where}: {result.code.value}")
