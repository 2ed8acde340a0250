"""The follower's side of an incremental fetch session (KIP-227). Pure.

Owner: the fetcher machine of one source broker. The leader remembers partitions and offsets, and a request names only those
that changed. `sent` holds the entries that the leader remembers, as long as the session lives.
"""

from dataclasses import dataclass
from typing import NamedTuple

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import ZERO_TOPIC_ID, TopicId, TopicPartition
from barnabas.broker.replication.fetch_session_cache import EPOCH_MAX, FINAL_EPOCH, INITIAL_EPOCH, INVALID_SESSION_ID


class FetchEntry(NamedTuple):
    """The part of a request about one partition. Equal entries need not be sent twice."""

    topic_id: TopicId
    fetch_offset: int
    log_start: int
    current_leader_epoch: int
    #: The epoch of the last record in the log; -1: there is no record, or the leader is too old for this field (before v12).
    last_fetched_epoch: int
    max_bytes: int


class Forgotten(NamedTuple):
    partition: TopicPartition
    topic_id: TopicId


@dataclass(slots=True)
class FetchPlan:
    """One Fetch request, without the settings that are the same for all."""

    session_id: int
    session_epoch: int
    to_send: dict[TopicPartition, FetchEntry]
    forgotten: tuple[Forgotten, ...]
    #: All partitions have topic ids, so versions from 13 on may be used.
    has_topic_ids: bool

    @property
    def is_full(self) -> bool:
        return self.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)


class FetchSessionHandler:
    def __init__(self) -> None:
        self._id = INVALID_SESSION_ID
        self._epoch = INITIAL_EPOCH
        #: The last entry that was sent for each partition of the session.
        self.sent: dict[TopicPartition, FetchEntry] = {}
        self._without_topic_id = 0

    @property
    def next_is_full(self) -> bool:
        return self._epoch == INITIAL_EPOCH

    def plan_full(self, entries: dict[TopicPartition, FetchEntry]) -> FetchPlan:
        self.sent = dict(entries)
        self._without_topic_id = sum(entry.topic_id == ZERO_TOPIC_ID for entry in entries.values())
        return FetchPlan(self._id, self._epoch, entries, (), self._without_topic_id == 0)

    def plan_increment(self, changed: dict[TopicPartition, FetchEntry], dropped: list[TopicPartition]) -> FetchPlan:
        """Plan a request with the entries that differ from those that the leader remembers."""
        sent = self.sent
        to_send: dict[TopicPartition, FetchEntry] = {}
        forgotten: list[Forgotten] = []
        for partition in dropped:
            old = sent.pop(partition, None)
            if old is not None:
                self._without_topic_id -= old.topic_id == ZERO_TOPIC_ID
                forgotten.append(Forgotten(partition, old.topic_id))
        for partition, entry in changed.items():
            old = sent.get(partition)
            if old == entry:
                continue
            if old is not None:
                self._without_topic_id -= old.topic_id == ZERO_TOPIC_ID
                if old.topic_id not in (entry.topic_id, ZERO_TOPIC_ID):
                    # The topic was created again: the leader must drop its entry with the old id.
                    forgotten.append(Forgotten(partition, old.topic_id))
            self._without_topic_id += entry.topic_id == ZERO_TOPIC_ID
            sent[partition] = entry
            to_send[partition] = entry
        return FetchPlan(self._id, self._epoch, to_send, tuple(forgotten), self._without_topic_id == 0)

    def answered(self, plan: FetchPlan, *, error_code: int, session_id: int) -> bool:
        """Handle a response. False: it has no partitions that may be used."""
        if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._id, self._epoch = INVALID_SESSION_ID, INITIAL_EPOCH
            return False
        if error_code != ErrorCode.NONE:
            self.broken()
            return False
        if session_id == INVALID_SESSION_ID:
            # The leader has no room for a session, or has closed this one: send full requests until it has room.
            self._id, self._epoch = INVALID_SESSION_ID, INITIAL_EPOCH
        elif plan.is_full:
            self._id, self._epoch = session_id, 1
        else:
            self._epoch = _after(self._epoch)
        return True

    def abandoned(self, plan: FetchPlan) -> bool:
        """Handle that a request in flight was given up.

        The leader goes on from that request if it got it, and refuses the next request if not. Return False if there is no
        session yet.
        """
        if plan.is_full:
            self.broken()
            return False
        self._epoch = _after(self._epoch)
        return True

    def broken(self) -> None:
        """Begin a new session after a lost or malformed answer, and let the leader close the old one."""
        self._epoch = INITIAL_EPOCH


def _after(epoch: int) -> int:
    return 1 if epoch == EPOCH_MAX else epoch + 1
