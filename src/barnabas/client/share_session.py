"""The share session of a consumer with one broker (KIP-932): its epoch, its partitions, and decisions to send. Pure.

Every request of a session has the next epoch, so a session has one request in flight. A request of epoch 0 begins a session and
has no decisions; one with the final epoch ends it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeVar

from barnabas.base.ids import TopicPartition
from barnabas.wire.messages import share_acknowledge as acknowledging
from barnabas.wire.messages import share_fetch as fetching

FIRST_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1


class AcknowledgeType(IntEnum):
    """What becomes of a record, numbered as in requests."""

    #: There is no record at the offset.
    GAP = 0
    #: The record was processed.
    ACCEPT = 1
    #: Another delivery, to any member.
    RELEASE = 2
    #: No further delivery.
    REJECT = 3
    #: This member keeps the record for another lock duration.
    RENEW = 4


class AcknowledgementMode(Enum):
    """`share.acknowledgement.mode`"""

    #: The next `poll` or `commit` accepts all records of the last `poll`.
    IMPLICIT = "implicit"
    #: The application decides about each record before the next `poll`.
    EXPLICIT = "explicit"


class AcquireMode(IntEnum):
    """`share.acquire.mode`"""

    #: Whole batches of the producer: more records than `max.poll.records` may come.
    BATCH_OPTIMIZED = 0
    #: Never more records than `max.poll.records`.
    RECORD_LIMIT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConfig:
    """Settings with Kafka's names and defaults."""

    group_id: str
    acknowledgement_mode: AcknowledgementMode = AcknowledgementMode.IMPLICIT
    acquire_mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED
    max_poll_records: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 * 1024 * 1024
    fetch_max_wait_ms: int = 500
    check_crcs: bool = True
    client_rack: str = ""
    retry_backoff_ms: int = 100


class SharePartition(NamedTuple):
    topic_id: bytes
    partition: TopicPartition


#: Decisions by offset.
Decisions = dict[int, AcknowledgeType]
B = TypeVar("B", fetching.AcknowledgementBatch, acknowledging.AcknowledgementBatch)


@dataclass(slots=True)
class ShareSession:
    """Owner: the consumer that has it."""

    member_id: str
    epoch: int = FIRST_EPOCH
    #: The partitions that the broker knows in this session.
    partitions: set[SharePartition] = field(default_factory=set)
    #: Decisions that are not sent yet.
    pending: dict[SharePartition, Decisions] = field(default_factory=dict)

    @property
    def is_new(self) -> bool:
        return self.epoch == FIRST_EPOCH

    def decide(self, partition: SharePartition, offset: int, kind: AcknowledgeType) -> None:
        self.pending.setdefault(partition, {})[offset] = kind

    def take(self) -> dict[SharePartition, Decisions]:
        """Return the decisions for the next request. Later decisions go with the one after it."""
        taken, self.pending = self.pending, {}
        return taken

    def answered(self) -> None:
        """Go to the next epoch: the broker has carried out a request."""
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1

    def lost(self) -> None:
        """Begin again: the broker does not know the session. It has released all its records."""
        self.epoch = FIRST_EPOCH
        self.partitions.clear()

    def fetch(
        self, config: ShareConfig, wanted: Iterable[SharePartition], decisions: Mapping[SharePartition, Decisions]
    ) -> fetching.ShareFetchRequest:
        """Build a request for records of these partitions, with decisions about former records of them."""
        wanted = set(wanted)
        assert wanted.issuperset(decisions), "a request would fetch from each partition that it names"
        named = (wanted - self.partitions) | set(decisions)
        forgotten = self.partitions - wanted
        topics: dict[bytes, list[fetching.FetchPartition]] = {}
        for each in sorted(named):
            batches = list(_batches(decisions.get(each, {}), fetching.AcknowledgementBatch))
            topics.setdefault(each.topic_id, []).append(
                fetching.FetchPartition(partition_index=each.partition.partition, acknowledgement_batches=batches)
            )
        gone: dict[bytes, list[int]] = {}
        for each in sorted(forgotten):
            gone.setdefault(each.topic_id, []).append(each.partition.partition)
        self.partitions = wanted
        return fetching.ShareFetchRequest(
            group_id=config.group_id,
            member_id=self.member_id,
            share_session_epoch=self.epoch,
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            max_records=config.max_poll_records,
            batch_size=config.max_poll_records,
            share_acquire_mode=config.acquire_mode,
            topics=[fetching.FetchTopic(topic_id=id, partitions=parts) for id, parts in topics.items()],
            forgotten_topics_data=[
                fetching.ForgottenTopic(topic_id=id, partitions=indexes) for id, indexes in gone.items()
            ],
        )

    def acknowledge(
        self, group_id: str, decisions: Mapping[SharePartition, Decisions], *, is_final: bool = False
    ) -> acknowledging.ShareAcknowledgeRequest:
        topics: dict[bytes, list[acknowledging.AcknowledgePartition]] = {}
        for each, of_partition in sorted(decisions.items()):
            batches = list(_batches(of_partition, acknowledging.AcknowledgementBatch))
            topics.setdefault(each.topic_id, []).append(
                acknowledging.AcknowledgePartition(
                    partition_index=each.partition.partition, acknowledgement_batches=batches
                )
            )
        return acknowledging.ShareAcknowledgeRequest(
            group_id=group_id,
            member_id=self.member_id,
            share_session_epoch=FINAL_EPOCH if is_final else self.epoch,
            is_renew_ack=has_renewals(decisions),
            topics=[acknowledging.AcknowledgeTopic(topic_id=id, partitions=parts) for id, parts in topics.items()],
        )


def has_renewals(decisions: Mapping[SharePartition, Decisions]) -> bool:
    return any(AcknowledgeType.RENEW in each.values() for each in decisions.values())


def _batches(decisions: Decisions, kind: type[B]) -> Iterator[B]:
    """Yield runs of consecutive offsets with the same decision."""
    first = last = -1
    decided: AcknowledgeType | None = None
    for offset in sorted(decisions):
        if decided is not None and decisions[offset] is decided and offset == last + 1:
            last = offset
            continue
        if decided is not None:
            yield kind(first_offset=first, last_offset=last, acknowledge_types=[decided])
        first = last = offset
        decided = decisions[offset]
    if decided is not None:
        yield kind(first_offset=first, last_offset=last, acknowledge_types=[decided])
