"""Carries out decisions: sends a marker to every partition of the transaction, then writes its completion to the log.

Owner: the event loop. Markers are grouped by the leaders of the partitions, and each leader gets one WriteTxnMarkers request at
a time. If a leader refuses a marker for now, it is sent again, to the partition's leader at that time.

A partition that does not exist any more needs no marker. But a partition may exist that this broker's metadata does not have
yet: a broker that has just started learns of its own partitions first. So ZooKeeper is asked. When the coordinator's partition
moves to another broker, this broker forgets its markers: the next coordinator finds the decision in the log and sends them
again, which does no harm.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from barnabas.base.errors import BarnabasError, ErrorCode, Refused
from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.timers import Timers
from barnabas.broker.transactions.machine import SendMarkers
from barnabas.broker.transactions.state import Identity
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

log = logging.getLogger(__name__)

#: The pause before the leader of a partition is looked up again.
RETRY_BACKOFF_MS: Final = 100
#: Transactions in one request: limits its size, and how long its answer takes.
TRANSACTIONS_PER_REQUEST_MAX: Final = 500

#: The broker does not have the partition yet, or is not its leader any more: send the marker again.
_RETRIED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
#: The partition cannot hold transactional records, so it needs no marker.
_SKIPPED: Final = frozenset(
    {
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.POLICY_VIOLATION,  # the topic is a mirror now, and gets its markers from its source
    }
)
#: A newer coordinator has ended the transaction, or the producer has a later epoch.
_CANCELLED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})


class Leaders(Protocol):
    def leader_of(self, partition: TopicPartition) -> BrokerId | None:
        """Return the leader that this broker knows; -1 if it is not alive, None if there is no such partition."""
        ...


class _Decided:
    """A decided transaction with the partitions that still need its marker."""

    __slots__ = ("coordinator", "identity", "is_commit", "remaining", "transactional_id", "version")

    def __init__(self, coordinator: int, message: SendMarkers) -> None:
        #: The partition of `__transaction_state`.
        self.coordinator = coordinator
        self.transactional_id = message.transactional_id
        self.identity = message.identity
        self.is_commit = message.is_commit
        self.version = message.client_version
        self.remaining = set(message.partitions)


class _Marker(NamedTuple):
    decided: _Decided
    partitions: tuple[TopicPartition, ...]


class MarkerSender:
    def __init__(
        self,
        leaders: Leaders,
        *,
        coordinator_epoch: Callable[[int], int | None],
        send: Callable[[BrokerId, WriteTxnMarkersRequest], Awaitable[WriteTxnMarkersResponse]],
        complete: Callable[[int, str, Identity], Awaitable[None]],
        exists: Callable[[TopicPartition], Awaitable[bool]],
        timers: Timers,
        spawn: Spawn,
        on_bug: Callable[[BaseException], None],
    ) -> None:
        """`coordinator_epoch` returns this broker's leader epoch of a partition of `__transaction_state`, or None if it does
        not lead.

        `send` raises a `BarnabasError` if no answer comes, `exists` if ZooKeeper cannot be asked. `complete` writes the
        completion, and raises `Refused`.
        """
        self._leaders = leaders
        self._coordinator_epoch = coordinator_epoch
        self._send = send
        self._complete = complete
        self._exists = exists
        self._timers = timers
        self._spawn = spawn
        self._on_bug = on_bug
        self._decided: dict[tuple[int, str], _Decided] = {}
        self._queues: dict[BrokerId, list[_Marker]] = {}
        self._sending: set[BrokerId] = set()
        #: Markers that wait for a leader, or for a pause to end.
        self._parked: list[_Marker] = []
        self._wakes = False

    def __len__(self) -> int:
        """Return the number of decided transactions whose completion is not written yet."""
        return len(self._decided)

    @property
    def without_leader(self) -> int:
        """Number of markers that wait until their partitions have a leader, or for a pause to end."""
        return len(self._parked)

    def start(self, coordinator: int, message: SendMarkers) -> None:
        """Send the markers of a transaction whose decision is committed."""
        decided = _Decided(coordinator, message)
        self._decided[coordinator, message.transactional_id] = decided
        if decided.remaining:
            self._route(decided, tuple(message.partitions))
        else:
            self._finish(decided)

    def forget(self, coordinator: int) -> None:
        """Drop the markers of a partition of `__transaction_state` that this broker does not lead any more."""
        for key in [key for key in self._decided if key[0] == coordinator]:
            del self._decided[key]

    def metadata_changed(self) -> None:
        """Look for leaders again, for the markers that wait for one."""
        parked, self._parked = self._parked, []
        for marker in parked:
            if self._is_current(marker.decided):
                self._route(marker.decided, marker.partitions)

    def _is_current(self, decided: _Decided) -> bool:
        return self._decided.get((decided.coordinator, decided.transactional_id)) is decided

    def _route(self, decided: _Decided, partitions: tuple[TopicPartition, ...]) -> None:
        by_leader: dict[BrokerId, list[TopicPartition]] = {}
        unknown: list[TopicPartition] = []
        for partition in partitions:
            leader = self._leaders.leader_of(partition)
            if leader is None:
                unknown.append(partition)
            else:
                by_leader.setdefault(leader, []).append(partition)
        if unknown:
            self._spawn(self._look_for(decided, unknown), f"partitions of {decided.transactional_id}")
        for leader, led in by_leader.items():
            marker = _Marker(decided, tuple(led))
            if leader < 0:
                self._park(marker)
            else:
                self._enqueue(leader, marker)

    async def _look_for(self, decided: _Decided, partitions: list[TopicPartition]) -> None:
        """Ask whether the partitions exist: without the marker, the readers of an existing partition would wait forever."""
        gone: list[TopicPartition] = []
        try:
            for partition in partitions:
                if not await self._exists(partition):
                    log.info(
                        "[transaction %s] %s does not exist any more and needs no marker",
                        decided.transactional_id,
                        partition,
                    )
                    gone.append(partition)
        except BarnabasError as error:
            log.info(
                "[transaction %s] cannot look up its partitions, trying again: %s", decided.transactional_id, error
            )
        except Exception as error:
            self._on_bug(error)
            raise
        decided.remaining.difference_update(gone)
        if not self._is_current(decided):
            return
        existing = tuple(each for each in partitions if each not in gone)
        if existing:
            self._park(_Marker(decided, existing))
        if gone and not decided.remaining:
            self._finish(decided)

    def _enqueue(self, leader: BrokerId, marker: _Marker) -> None:
        self._queues.setdefault(leader, []).append(marker)
        if leader not in self._sending:
            self._sending.add(leader)
            self._spawn(self._serve(leader), f"transaction markers to {leader}")

    def _park(self, marker: _Marker) -> None:
        self._parked.append(marker)
        if not self._wakes:
            self._wakes = True
            self._timers.call_later(RETRY_BACKOFF_MS / 1000, self._wake)

    def _wake(self) -> None:
        self._wakes = False
        self.metadata_changed()

    async def _serve(self, leader: BrokerId) -> None:
        """Send the queued markers of one broker, request after request, until the queue is empty."""
        try:
            while queue := self._queues.get(leader):
                markers = [each for each in queue[:TRANSACTIONS_PER_REQUEST_MAX] if self._is_current(each.decided)]
                del queue[:TRANSACTIONS_PER_REQUEST_MAX]
                if markers:
                    await self._send_once(leader, markers)
        except Exception as error:
            self._on_bug(error)
            raise
        finally:
            self._sending.discard(leader)
            self._queues.pop(leader, None)

    async def _send_once(self, leader: BrokerId, markers: list[_Marker]) -> None:
        request = WriteTxnMarkersRequest()
        sent: list[tuple[_Marker, int]] = []
        for marker in markers:
            epoch = self._coordinator_epoch(marker.decided.coordinator)
            if epoch is not None:
                sent.append((marker, epoch))
                request.markers.append(_entry(marker, epoch))
        if not sent:
            return
        try:
            response = await self._send(leader, request)
        except BarnabasError as error:
            log.info(
                "[transactions] markers of %d transactions to broker %d failed, trying again: %s",
                len(sent),
                leader,
                error,
            )
            for marker, _ in sent:
                self._park(marker)
            return
        errors: dict[tuple[int, TopicPartition], ErrorCode] = {}
        for result in response.markers:
            for topic in result.topics:
                for each in topic.partitions:
                    key = (result.producer_id, TopicPartition(topic.name, each.partition_index))
                    errors[key] = ErrorCode(each.error_code)
        for marker, epoch in sent:
            if self._is_current(marker.decided):
                self._take_answer(marker, epoch, errors)

    def _take_answer(self, marker: _Marker, epoch: int, errors: dict[tuple[int, TopicPartition], ErrorCode]) -> None:
        decided = marker.decided
        again: list[TopicPartition] = []
        for partition in marker.partitions:
            error = errors.get((decided.identity.producer_id, partition), ErrorCode.UNKNOWN_SERVER_ERROR)
            if error is ErrorCode.NONE or error in _SKIPPED:
                decided.remaining.discard(partition)
            elif error in _CANCELLED and self._coordinator_epoch(decided.coordinator) == epoch:
                log.error(
                    "[transaction %s] %s refused the marker of %s with %s: a newer coordinator or producer ended it",
                    *(decided.transactional_id, partition, decided.identity, error.name),
                )
                del self._decided[decided.coordinator, decided.transactional_id]
                return
            else:
                # An unexpected error is retried as well: the decision is final.
                if error not in _RETRIED:
                    log.error(
                        "[transaction %s] %s answered a marker with %s, sending it again: see the leader's log",
                        decided.transactional_id,
                        partition,
                        error.name,
                    )
                again.append(partition)
        if again:
            self._park(_Marker(decided, tuple(again)))
        if not decided.remaining:
            self._finish(decided)

    def _finish(self, decided: _Decided) -> None:
        self._spawn(self._write_completion(decided), f"complete {decided.transactional_id}")

    async def _write_completion(self, decided: _Decided) -> None:
        try:
            if self._is_current(decided):
                await self._complete(decided.coordinator, decided.transactional_id, decided.identity)
        except Refused as refusal:
            if refusal.code is ErrorCode.COORDINATOR_NOT_AVAILABLE and self._is_current(decided):
                self._timers.call_later(RETRY_BACKOFF_MS / 1000, lambda: self._finish(decided))
                return
            # NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS: the next coordinator finishes the work.
            log.info(
                "[transaction %s] its completion is left to the next coordinator: %s", decided.transactional_id, refusal
            )
        except Exception as error:
            self._on_bug(error)
            raise
        if self._is_current(decided):
            del self._decided[decided.coordinator, decided.transactional_id]


def _entry(marker: _Marker, coordinator_epoch: int) -> WritableTxnMarker:
    topics: dict[str, WritableTxnMarkerTopic] = {}
    for topic, partition in marker.partitions:
        topics.setdefault(topic, WritableTxnMarkerTopic(name=topic)).partition_indexes.append(partition)
    decided = marker.decided
    return WritableTxnMarker(
        producer_id=decided.identity.producer_id,
        producer_epoch=decided.identity.epoch,
        transaction_result=decided.is_commit,
        topics=list(topics.values()),
        coordinator_epoch=coordinator_epoch,
        transaction_version=decided.version,
    )
