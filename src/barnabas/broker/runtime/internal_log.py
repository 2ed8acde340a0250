"""The log of a coordinator's internal topic, as its runtime sees it."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from barnabas.base.errors import ErrorCode
from barnabas.broker.runtime.machine import KeyValue, Marker, Producer, ReplayedRecord

Replay = Callable[[ReplayedRecord | Marker, int], None]


class CoordinatorLog(Protocol):
    """The broker makes one from the replica manager."""

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        *,
        producer: Producer,
        guard: object | None = None,
        now_ms: int,
        on_committed: Callable[[ErrorCode], None],
    ) -> int:
        """Append as leader with acks=all and return the first offset, or raise `Refused`. `guard`: see `Result`.

        `on_committed` is called exactly once, before this returns where nobody else is in the ISR. An error says that the
        records may never be committed by this leader: it is for one that lost its leadership, not for one whose
        followers are slow. Those are waited for, however long it takes: until then nobody may see what was written.
        """
        ...

    async def load(self, partition: int, replay: Replay) -> None:
        """Feed everything in the log to `replay` with its offset, in slices that leave the loop to others.

        Returns when all of it is committed. Raises `Refused` where this broker does not lead the partition any more.
        """
        ...


_LOG_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def coordinator_error(error: ErrorCode) -> ErrorCode:
    """How an error of the internal topic's log looks to a client of the coordinator, as in Kafka."""
    return _LOG_ERRORS.get(error, error)
