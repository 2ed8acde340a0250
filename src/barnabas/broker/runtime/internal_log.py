"""The log of a coordinator's internal topic, in the form that the runtime uses."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from barnabas.base.errors import ErrorCode
from barnabas.broker.runtime.machine import KeyValue, Marker, Producer, ReplayedRecord

Replay = Callable[[ReplayedRecord | Marker, int], None]


class CoordinatorLog(Protocol):
    """The broker implements this with the replica manager."""

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

        `on_committed` is called exactly once; if no other broker is in the ISR, before this method returns. An error means that
        this leader may never commit the records: it has lost its leadership. Slow followers cause no error: the records wait
        for them as long as it takes, and until then no client may see the records.
        """
        ...

    def delete_before(self, partition: int, offset: int) -> None:
        """Move the start of the log up to a committed offset, or raise `Refused`. An offset before the start does nothing."""
        ...

    async def load(self, partition: int, replay: Replay) -> None:
        """Pass all of the log to `replay` with offsets, in slices that let other tasks run.

        Returns when all of it is committed. Raises `Refused` if this broker does not lead the partition any more.
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
    """Return the coordinator's error for an error of the internal topic's log, as in Kafka."""
    return _LOG_ERRORS.get(error, error)
