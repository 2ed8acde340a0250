"""Requests to ZooKeeper and its responses, as plain values.

`session` carries them out over kazoo; the controller's machine returns them as effects and gets the answers as an event, so
that an in-memory model of the tree can replace ZooKeeper. Pure.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

from barnabas.broker.zookeeper_client.znodes_security import ZnodeAcl

#: A version that matches any.
ANY_VERSION = -1


class ZkCode(Enum):
    OK = "ok"
    NO_NODE = "no node"
    NODE_EXISTS = "node exists"
    BAD_VERSION = "bad version"
    NOT_EMPTY = "not empty"
    NO_AUTH = "not authorized"
    #: The operation was part of a transaction that failed because of another operation.
    ROLLED_BACK = "rolled back"
    NO_CHILDREN_FOR_EPHEMERALS = "no children for ephemerals"
    #: The server is of an older release.
    UNIMPLEMENTED = "unimplemented"
    #: The request has more bytes than ZooKeeper accepts.
    TOO_LARGE = "larger than ZooKeeper takes (jute.maxbuffer)"
    #: The request was refused for a reason that callers do not distinguish.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Stat:
    """The used fields of a znode's stat."""

    version: int
    #: The transaction that created it: a broker's epoch.
    czxid: int
    #: The session that owns an ephemeral znode, or 0.
    ephemeral_owner: int = 0
    mtime_ms: int = 0
    #: The transaction that changed it last; 0 if unknown.
    mzxid: int = 0
    #: The transaction that last created or deleted one of its children: equal for all clients that see the same children.
    pzxid: int = 0


@dataclass(frozen=True, slots=True)
class Get:
    path: str
    #: Called once when the data changes or the znode is deleted. Equal values on one path count once. The session calls it
    #: with the path; in the controller's effects it is the event to feed back.
    watch: Hashable | None = None


@dataclass(frozen=True, slots=True)
class Exists:
    path: str
    #: Called once when the znode is created, changed or deleted.
    watch: Hashable | None = None


@dataclass(frozen=True, slots=True)
class GetChildren:
    path: str
    #: Called once when a child is created or deleted.
    watch: Hashable | None = None


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes | None = None
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    path: str
    data: bytes | None
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class GetAcl:
    path: str


@dataclass(frozen=True, slots=True)
class SetAcl:
    """Gives a znode the ACL that this session would create it with: closed with `zookeeper.set.acl`, else open."""

    path: str


@dataclass(frozen=True, slots=True)
class Check:
    """Succeeds if the znode has this version. Only inside a `Multi`."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Multi:
    """All of its operations, or none."""

    operations: "tuple[Create | SetData | Delete | Check, ...]"


@dataclass(frozen=True, slots=True)
class MultiRead:
    """Several reads in one request, each with its own answer. The session builds it; servers before 3.6 do not support it."""

    operations: tuple[Get, ...]


Write = Create | SetData | Delete
Operation = Get | Exists | GetChildren | GetAcl | SetAcl | Create | SetData | Delete | Multi


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one operation. Which fields are set depends on the operation; the others keep their defaults."""

    code: ZkCode
    #: Create: the path, with its sequence number.
    path: str = ""
    #: Get.
    data: bytes | None = None
    #: Get, Exists, GetChildren, SetData.
    stat: Stat | None = None
    #: GetChildren, sorted.
    children: tuple[str, ...] = ()
    #: GetAcl.
    acl: tuple[ZnodeAcl, ...] = ()
    #: Multi and MultiRead, in the order of their operations.
    results: "tuple[Result, ...]" = ()

    @property
    def ok(self) -> bool:
        return self.code is ZkCode.OK


class Interrupted(Enum):
    """The reason why an operation has no answer."""

    #: The connection broke before the answer: the request may or may not have been carried out.
    CONNECTION_LOST = "connection lost"
    #: This server refuses it, because the session continues at another server.
    SESSION_MOVED = "session moved"
    #: The session is over, or was closed.
    SESSION_GONE = "session gone"


@dataclass(frozen=True, slots=True)
class Guard:
    """Allows writes only while /controller_epoch has this version: a controller that was replaced writes nothing."""

    epoch_zk_version: int
