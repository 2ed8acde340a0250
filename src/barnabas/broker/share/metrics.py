"""The metrics of share groups at the leaders of partitions, with the numbers of Kafka's ShareGroupMetrics, ShareSessionCache
and SharePartitionMetrics."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from barnabas.base.metrics.registry import Counter, Registry, Row
from barnabas.broker.share.records import ACCEPT, REJECT, RELEASE, RENEW, Acknowledgement

if TYPE_CHECKING:
    from barnabas.broker.share.partition import SharePartition
    from barnabas.broker.share.sessions import ShareSessions

#: As in Kafka, gaps are not counted.
_TYPES: Final = {ACCEPT: "Accept", RELEASE: "Release", REJECT: "Reject", RENEW: "Renew"}


class DeadLetterCounts(NamedTuple):
    requests: Counter
    records: Counter
    failed: Counter

    @classmethod
    def of(cls, registry: Registry) -> "DeadLetterCounts":
        return cls(
            registry.counter(
                "kafka_server_share_group_dlq_produce_requests", "Produce requests for dead letters of share groups."
            ),
            registry.counter("kafka_server_share_group_dlq_records", "Dead letters of share groups that were written."),
            registry.counter(
                "kafka_server_share_group_dlq_failed",
                "Times that records of share groups were given up without a copy in the dead-letter topic.",
            ),
        )


class Counted(Protocol):
    """The attributes of the manager that metrics use."""

    @property
    def sessions(self) -> "ShareSessions": ...

    def __iter__(self) -> "Iterator[SharePartition]": ...


@dataclass(frozen=True, slots=True)
class ShareCounts:
    #: Gets the milliseconds that a share partition took to load.
    loaded: Callable[[float], None]
    #: Gets the number of records whose locks have timed out.
    lock_timeouts: Callable[[int], None]
    fetches: Callable[[], None]
    acknowledges: Callable[[], None]
    #: Get the number of partitions in a response that have an error.
    failed_fetches: Callable[[int], None]
    failed_acknowledges: Callable[[int], None]
    #: Gets the milliseconds from a fetch until it locks its first records.
    acquired: Callable[[float], None]
    _fetched: Counter
    _wanted: Counter
    _by_type: dict[int, Counter]

    @classmethod
    def of(cls, registry: Registry) -> "ShareCounts":
        return cls(
            registry.histogram(
                "kafka_server_share_group_partition_load_time_ms",
                "How long share partitions took to load, as PartitionLoadTimeMs.",
            ).observe_ms,
            registry.counter(
                "kafka_server_share_partition_acquisition_lock_timeouts",
                "Records whose locks have timed out, as AcquisitionLockTimeoutPerSec.",
            ).add,
            registry.counter(
                "kafka_server_total_share_fetch_requests", "ShareFetch requests, as TotalShareFetchRequestsPerSec."
            ).add,
            registry.counter(
                "kafka_server_total_share_acknowledge_requests",
                "ShareAcknowledge requests, as TotalShareAcknowledgementRequestsPerSec.",
            ).add,
            registry.counter(
                "kafka_server_failed_share_fetch_requests",
                "Partitions of ShareFetch requests that failed, as FailedShareFetchRequestsPerSec.",
            ).add,
            registry.counter(
                "kafka_server_failed_share_acknowledge_requests",
                "Partitions whose acknowledgements were refused, as FailedShareAcknowledgementRequestsPerSec.",
            ).add,
            registry.histogram(
                "kafka_server_share_group_topic_partitions_acquire_time_ms",
                "How long ShareFetch requests waited until they got records, as TopicPartitionsAcquireTimeMs.",
            ).observe_ms,
            registry.counter(
                "kafka_server_share_group_fetched_topic_partitions",
                "Partitions of which ShareFetch requests got records.",
            ),
            registry.counter(
                "kafka_server_share_group_requested_topic_partitions",
                "Partitions that ShareFetch requests asked for, as in RequestTopicPartitionsFetchRatio.",
            ),
            {
                kind: registry.counter(
                    "kafka_server_share_group_record_acknowledgements",
                    "Acknowledged records by type, as RecordAcknowledgementsPerSec.",
                    ack_type=name,
                )
                for kind, name in _TYPES.items()
            },
        )

    def fetched(self, wanted: int, found: int) -> None:
        """Count the partitions of a fetch, and those of which it got records."""
        self._wanted.add(wanted)
        self._fetched.add(found)

    def acknowledged(self, decisions: Iterable[Acknowledgement]) -> None:
        for first, last, types in decisions:
            for kind, size in _counts(types, last - first + 1):
                counter = self._by_type.get(kind)
                if counter is not None:
                    counter.add(size)


def _counts(types: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    if len(types) == 1:
        yield types[0], size
        return
    for kind, same in groupby(types):
        yield kind, sum(1 for _ in same)


def add_gauges(registry: Registry, shares: Counted) -> None:
    """Add gauges that are computed at each scrape."""

    def partitions(value: "Callable[[SharePartition], float]") -> Callable[[], Iterator[Row]]:
        def rows() -> Iterator[Row]:
            for share in shares:
                labels = {"group": share.key.group_id, "topic": share.tp.topic, "partition": str(share.tp.partition)}
                yield labels, value(share)

        return rows

    registry.gauge(
        "kafka_server_share_session_cache_share_sessions_count",
        "Share sessions, as ShareSessionsCount.",
        lambda: len(shares.sessions),
    )
    registry.gauge(
        "kafka_server_share_session_cache_share_partitions_count",
        "Partitions in all share sessions, as SharePartitionsCount.",
        lambda: shares.sessions.partition_count,
    )
    registry.gauge(
        "kafka_server_share_session_cache_share_session_evictions",
        "Share sessions that ended because their connection was lost, as ShareSessionEvictionsPerSec.",
        lambda: shares.sessions.evictions,
    )
    registry.table(
        "kafka_server_share_partition_in_flight_message_count",
        "Records of a share partition between its start and its end, as InFlightMessageCount.",
        partitions(lambda share: share.machine.in_flight if share.machine is not None else 0),
    )
    registry.table(
        "kafka_server_share_partition_in_flight_batch_count",
        "Runs of records in the same state in a share partition, as InFlightBatchCount.",
        partitions(lambda share: share.machine.run_count if share.machine is not None else 0),
    )
