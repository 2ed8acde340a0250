"""Requests that wait for replication: Produce with acks=all, long-polling Fetch, DeleteRecords.

Each waits in a purgatory under the partitions that can satisfy it. Requests that wait for a high watermark watch the partition
itself; followers, which wait for the log end, watch `partition.log_end_key`.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import Any, Final

from barnabas.base.errors import ErrorCode
from barnabas.broker.replication.fetch_session_cache import FetchSession
from barnabas.broker.replication.partition import LogEndKey, Partition
from barnabas.broker.runtime.purgatory import DelayedOperation

#: Partitions of one operation that the console and the CLI show.
NAMED_MAX: Final = 20


def _named(partition: Partition) -> dict[str, Any]:
    return {"topic": partition.tp.topic, "partition": partition.tp.partition}


class DelayedProduce(DelayedOperation):
    """acks=all: done when every partition's records are committed, or cannot be any more.

    `waiting` maps the index of a partition in the request to the partition, the offset that must be committed, and the
    leadership in which it was written.
    """

    __slots__ = ("_on_done", "_waiting", "errors")

    def __init__(
        self, waiting: dict[int, tuple[Partition, int, int]], on_done: Callable[[dict[int, ErrorCode]], None]
    ) -> None:
        super().__init__()
        self._waiting = waiting
        self._on_done = on_done
        self.errors: dict[int, ErrorCode] = {}

    def waits_for(self) -> dict[str, Any]:
        partitions = [
            {**_named(partition), "offset": offset, "high_watermark": partition.high_watermark}
            for partition, offset, _ in islice(self._waiting.values(), NAMED_MAX)
        ]
        return {"condition": "high watermark", "count": len(self._waiting), "partitions": partitions}

    def is_satisfied(self) -> bool:
        for index, (partition, required_offset, leadership) in list(self._waiting.items()):
            verdict = partition.machine.check_replicated(required_offset, leadership)
            if verdict is not None:
                del self._waiting[index]
                if verdict is not ErrorCode.NONE:
                    self.errors[index] = verdict
        return not self._waiting

    def on_complete(self, *, expired: bool) -> None:
        if expired:
            self.is_satisfied()
            for index in self._waiting:
                self.errors[index] = ErrorCode.REQUEST_TIMED_OUT
        self._on_done(self.errors)


class DelayedFetch(DelayedOperation):
    """A long poll: done when `min.bytes` have come, when a partition has other news, or when its time is up.

    Only partitions that changed during the wait are examined again. A follower's session is a key too: it is checked when
    partitions that rested in it have woken.
    """

    __slots__ = ("_missing_bytes", "places", "ready", "session")

    def __init__(
        self, places: dict[Hashable, int], *, ready: dict[int, int], min_bytes: int, session: FetchSession | None
    ) -> None:
        """`session`: a follower's session, in which partitions may rest."""
        super().__init__()
        #: Key -> index of the partition in the request.
        self.places = places
        #: Bytes that can be read, of the partitions that had some or may have changed, by their index.
        self.ready = ready
        self._missing_bytes = min_bytes - sum(ready.values())
        self.session = session

    @abstractmethod
    def bytes_ready(self, place: int) -> int | None:
        """Return how much can be read of a partition; None if the fetch must be answered at once, whatever it gets."""

    @abstractmethod
    def join_woken(self) -> Sequence[int]:
        """Add the session's partitions that have woken to the request; return their indexes."""

    def waits_for(self) -> dict[str, Any]:
        keys = list(islice(self.places, NAMED_MAX))
        # A follower watches the log ends, and its resting partitions under the session.
        is_follower = self.session is not None or any(not isinstance(key, Partition) for key in keys)
        if self.session is not None:
            count = len(self.session.partitions)
            named = [want.tp for want in islice(self.session.partitions.values(), NAMED_MAX) if want.tp is not None]
        else:
            count = len(self.places)
            named = [key.tp for key in keys if isinstance(key, Partition | LogEndKey)]
        return {
            "condition": "log end" if is_follower else "bytes",
            "missing_bytes": self._missing_bytes,
            "count": count,
            "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in named],
        }

    def is_satisfied(self) -> bool:
        return self._is_satisfied_by_woken() or any(map(self._is_satisfied_by, self.places.values()))

    def is_satisfied_by(self, key: Hashable) -> bool:
        place = self.places.get(key)
        return self._is_satisfied_by_woken() if place is None else self._is_satisfied_by(place)

    def _is_satisfied_by_woken(self) -> bool:
        # Evaluate all of them, also after one that is enough: they are part of the request now.
        satisfied = [self._is_satisfied_by(place) for place in self.join_woken()]
        return any(satisfied)

    def _is_satisfied_by(self, place: int) -> bool:
        found = self.bytes_ready(place)
        before = self.ready.get(place, 0)
        self.ready[place] = found or 0
        if found is None:
            return True
        self._missing_bytes -= found - before
        return self._missing_bytes <= 0


class DelayedDeleteRecords(DelayedOperation):
    """DeleteRecords: done when every live replica has moved its log start."""

    __slots__ = ("_on_done", "_waiting")

    def __init__(
        self, waiting: dict[int, tuple[Partition, int]], on_done: Callable[[dict[int, ErrorCode]], None]
    ) -> None:
        super().__init__()
        self._waiting = waiting
        self._on_done = on_done

    def waits_for(self) -> dict[str, Any]:
        partitions = [
            {**_named(partition), "offset": offset, "low_watermark": partition.low_watermark()}
            for partition, offset in islice(self._waiting.values(), NAMED_MAX)
            if partition.log is not None
        ]
        return {"condition": "log start", "count": len(self._waiting), "partitions": partitions}

    def is_satisfied(self) -> bool:
        return all(
            not partition.is_leader or partition.low_watermark() >= required
            for partition, required in self._waiting.values()
        )

    def on_complete(self, *, expired: bool) -> None:
        errors: dict[int, ErrorCode] = {}
        for index, (partition, required) in self._waiting.items():
            if not partition.is_leader:
                errors[index] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif partition.low_watermark() < required:
                errors[index] = ErrorCode.REQUEST_TIMED_OUT
        self._on_done(errors)
