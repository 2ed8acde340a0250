"""The common interface of all kinds of groups for the rest of the machine."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

from barnabas.base.config.group_config import GroupConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.runtime.machine import CancelTimer, KeyValue, Result, SetTimer

R = TypeVar("R")
#: Raises `Refused` if a member may not commit an offset of this topic and partition.
CheckCommit = Callable[[str, int], None]


class GroupType(Enum):
    """The value is Kafka's name, as ListGroups returns it."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


@dataclass(frozen=True, slots=True)
class Expiry:
    """Offsets expire when the retention has passed since `since_ms`; None: since each offset's own commit."""

    since_ms: int | None


class Requester(NamedTuple):
    """The sender of a request, and the API version of the request."""

    client_id: str
    #: The client's address as Kafka shows it: `/127.0.0.1`.
    client_host: str
    api_version: int


def refuse_blank(value: str | None, what: str) -> None:
    """Refuse a text of a request that is present, but empty."""
    if value is not None and not value.strip():
        raise Refused(ErrorCode.INVALID_REQUEST, f"{what} can't be empty.")


class Outcome(Result[Any]):
    """A result that grows while an operation runs."""

    __slots__ = ()

    def set_timer(self, key: tuple[object, ...], delay_ms: int) -> None:
        self.effects.append(SetTimer(key, delay_ms))

    def cancel_timer(self, key: tuple[object, ...]) -> None:
        self.effects.append(CancelTimer(key))

    def result(self, response: R | None = None) -> Result[R]:
        """Finish the result. A response of None means that the answer comes later."""
        self.response = response
        return self


class Topics(Protocol):
    """The cluster's topics, in the form that the machine uses."""

    def topic_id(self, name: str) -> bytes | None: ...

    def topic_name(self, topic_id: bytes) -> str | None: ...

    def partition_count(self, name: str) -> int:
        """Return the number of partitions; 0 if the topic does not exist."""
        ...

    def racks(self, name: str, partition: int) -> frozenset[str]:
        """Return the racks of the brokers that have a replica."""
        ...

    def names(self) -> Iterable[str]: ...

    @property
    def version(self) -> int:
        """Return a number that grows with every change of any topic."""
        ...


def _not_counted(amount: int = 1) -> None:
    """The counter of machines without metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """The counters of machines; each is called with an amount."""

    offset_commit: Callable[[int], None] = _not_counted
    offset_expiration: Callable[[int], None] = _not_counted
    offset_deletion: Callable[[int], None] = _not_counted
    completed_rebalance: Callable[[int], None] = _not_counted
    consumer_group_rebalance: Callable[[int], None] = _not_counted
    share_group_rebalance: Callable[[int], None] = _not_counted
    streams_group_rebalance: Callable[[int], None] = _not_counted


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEnvironment:
    """The environment of a machine: settings, topics, randomness."""

    settings: Callable[[], GroupSettings]
    #: Returns the present settings of one group, by its id.
    group_config: Callable[[str], GroupConfig]
    topics: Topics
    #: A random part for member ids, different at each call.
    unique: Callable[[], str]
    #: Whether the consumer protocol (KIP-848) is served: only if every broker of the cluster knows it.
    consumer_protocol_enabled: Callable[[], bool]
    counts: GroupCounts = GroupCounts()


class Group(Protocol):
    group_id: str

    @property
    def type(self) -> GroupType: ...

    @property
    def is_empty(self) -> bool: ...

    @property
    def is_disposable(self) -> bool: ...

    def state_name(self) -> str: ...

    def is_subscribed_to(self, topic: str) -> bool: ...

    def check_offset_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, api_version: int, is_transactional: bool
    ) -> CheckCommit | None:
        """Return a further check for each partition; None: the member may commit all.

        :raises Refused: with the reason why this member may not commit.
        """
        ...

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None: ...

    def check_offset_delete(self) -> None: ...

    def check_delete(self) -> None: ...

    def expiry(self) -> Expiry | None: ...

    def tombstones(self) -> list[KeyValue]:
        """The records that remove the group, without its offsets."""
        ...
