"""DescribeNeighbours, API key 10007. Ours alone. The brokers that the answering broker reaches, and those that it does not;
also the members of ZooKeeper's ensemble."""

from typing import ClassVar

from barnabas.wire.messages.base import ApiMessage, Message, array, wire


class DescribeNeighboursRequest(ApiMessage):
    API_KEY: ClassVar[int] = 10007
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0


class DescribedNeighbour(Message):
    """A broker of the cluster, and what came of the last report to it."""

    broker_id: int = wire("int32", "0+")
    #: Since when reports to it fail; -1 if the last one was answered.
    failing_ms: int = wire("int64", "0+", default=-1)
    #: The last error.
    reason: str = wire("string", "0+")
    #: Whether it was an error of authentication: a connection is possible, but one side does not trust the other.
    is_untrusted: bool = wire("bool", "0+")
    #: Time since the last answer; -1 before the first one.
    answered_ms_ago: int = wire("int64", "0+", default=-1)
    #: The time from a report to its answer; -1 before there are enough.
    round_trip_ms: int = wire("int64", "0+", default=-1)
    #: By how much its clock is ahead of the answering broker's.
    clock_ahead_ms: int = wire("int64", "0+")


class DescribedStranger(Message):
    """A broker that runs and reports here, but is not in the cluster."""

    broker_id: int = wire("int32", "0+")
    host: str = wire("string", "0+")
    heard_ms_ago: int = wire("int64", "0+")
    #: For how long it had no connection to ZooKeeper at its last report; -1 if it had one.
    zookeeper_away_ms: int = wire("int64", "0+", default=-1)


class DescribedMember(Message):
    """A member of ZooKeeper's ensemble."""

    #: `host:port`, as in `zookeeper.connect`.
    address: str = wire("string", "0+")
    #: Since when it does not serve; -1 if it does.
    failing_ms: int = wire("int64", "0+", default=-1)
    reason: str = wire("string", "0+")
    #: Whether its port answers.
    is_up: bool = wire("bool", "0+", default=True)
    #: Whether it lacks transactions that another member has.
    is_behind: bool = wire("bool", "0+")


class DescribeNeighboursResponse(ApiMessage):
    API_KEY: ClassVar[int] = 10007
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0
    FLEXIBLE_FROM: ClassVar[int] = 0

    throttle_time_ms: int = wire("int32", "0+")
    error_code: int = wire("int16", "0+")
    error_message: str | None = wire("string", "0+", nullable="0+", default=None)
    #: The answering broker.
    broker_id: int = wire("int32", "0+", default=-1)
    #: Its clock.
    now_ms: int = wire("int64", "0+", default=-1)
    #: For how long it has had no connection to ZooKeeper; -1 if it has one.
    zookeeper_away_ms: int = wire("int64", "0+", default=-1)
    neighbours: list[DescribedNeighbour] = array(DescribedNeighbour, "0+")
    strangers: list[DescribedStranger] = array(DescribedStranger, "0+")
    #: Empty if `zookeeper.connect` names one server only.
    zookeeper_members: list[DescribedMember] = array(DescribedMember, "0+")
