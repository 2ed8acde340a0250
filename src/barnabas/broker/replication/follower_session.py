"""The follower's side of an incremental fetch session (KIP-227). Pure.

Owner: the fetcher machine of one source broker. The leader remembers which partitions are asked for at which offsets; a
request then names only what changed. `sent` is what the leader remembers, as long as it remembers it.
"""

from dataclasses import dataclass
from typing import NamedTuple

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import ZERO_TOPIC_ID, TopicId, TopicPartition
from barnabas.broker.replication.fetch_session_cache import EPOCH_MAX, FINAL_EPOCH, INITIAL_EPOCH, INVALID_SESSION_ID


class FetchEntry(NamedTuple):
    """What a request says of one partition. Two equal entries need not be sent twice."""

    topic_id: TopicId
    fetch_offset: int
    log_start: int
    current_leader_epoch: int
    #: The epoch of the last record in the log; -1: there is none, or the leader is too old to be told (before v12).
    last_fetched_epoch: int
    max_bytes: int


class Forgotten(NamedTuple):
    partition: TopicPartition
    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """One Fetch request, without its fixed settings."""

    session_id: int
    session_epoch: int
    to_send: dict[TopicPartition, FetchEntry]
    forgotten: tuple[Forgotten, ...]
    #: All partitions have topic ids: versions from 13 on may be used.
    has_topic_ids: bool

    @property
    def is_full(self) -> bool:
        return self.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)


class FetchSessionHandler:
    def __init__(self) -> None:
        self._id = INVALID_SESSION_ID
        self._epoch = INITIAL_EPOCH
        #: What the leader believes that is asked for: the entry that was sent last for each partition.
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
        """Only what differs from what the leader remembers goes on the wire."""
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
                    # The topic was created again: the leader must drop what it knows by the old id.
                    forgotten.append(Forgotten(partition, old.topic_id))
            self._without_topic_id += entry.topic_id == ZERO_TOPIC_ID
            sent[partition] = entry
            to_send[partition] = entry
        return FetchPlan(self._id, self._epoch, to_send, tuple(forgotten), self._without_topic_id == 0)

    def answered(self, plan: FetchPlan, *, error_code: int, session_id: int) -> bool:
        """Take note of a response. False: it holds no partitions worth looking at."""
        if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._id, self._epoch = INVALID_SESSION_ID, INITIAL_EPOCH
            return False
        if error_code != ErrorCode.NONE:
            self.broken()
            return False
        if session_id == INVALID_SESSION_ID:
            # The leader has no room for a session, or closed this one: every request is a full one until it has.
            self._id, self._epoch = INVALID_SESSION_ID, INITIAL_EPOCH
        elif plan.is_full:
            self._id, self._epoch = session_id, 1
        else:
            self._epoch = _after(self._epoch)
        return True

    def abandoned(self, plan: FetchPlan) -> bool:
        """A request was given up under way. The leader goes on from it, if it has got it; if not, it refuses the next one.
        False: there is no session to go on with yet."""
        if plan.is_full:
            self.broken()
            return False
        self._epoch = _after(self._epoch)
        return True

    def broken(self) -> None:
        """No answer, or one that makes no sense: begin a new session, and let the leader close the old one."""
        self._epoch = INITIAL_EPOCH


def _after(epoch: int) -> int:
    return 1 if epoch == EPOCH_MAX else epoch + 1
