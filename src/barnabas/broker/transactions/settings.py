"""The transaction coordinator's settings, as one immutable value."""

from dataclasses import dataclass
from typing import Final

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.topics import NewInternalTopic

#: Settings of the topic that the operator cannot change.
_ENFORCED: Final = {
    "unclean.leader.election.enable": "false",
    "compression.type": "uncompressed",
    "cleanup.policy": "compact",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Kafka's defaults; `of` takes them from a broker's configuration."""

    transaction_max_timeout_ms: int = 15 * 60 * 1000
    transactional_id_expiration_ms: int = 7 * 24 * 3600 * 1000
    expired_cleanup_interval_ms: int = 3600 * 1000
    two_phase_commit_enable: bool = False
    request_timeout_ms: int = 30_000
    topic_partitions: int = 50
    topic_replication_factor: int = 3
    topic_min_isr: int = 2
    topic_segment_bytes: int = 100 * 1024 * 1024

    @classmethod
    def of(cls, config: BrokerConfig) -> "TransactionSettings":
        return cls(
            transaction_max_timeout_ms=config.transaction_max_timeout_ms,
            transactional_id_expiration_ms=config.transactional_id_expiration_ms,
            expired_cleanup_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
            two_phase_commit_enable=config.transaction_two_phase_commit_enable,
            request_timeout_ms=config.request_timeout_ms,
            topic_partitions=config.transaction_state_log_num_partitions,
            topic_replication_factor=config.transaction_state_log_replication_factor,
            topic_min_isr=config.transaction_state_log_min_isr,
            topic_segment_bytes=config.transaction_state_log_segment_bytes,
        )

    @property
    def new_topic(self) -> NewInternalTopic:
        """Return `__transaction_state` as it is created."""
        settings = {
            **_ENFORCED,
            "min.insync.replicas": str(self.topic_min_isr),
            "segment.bytes": str(self.topic_segment_bytes),
        }
        return NewInternalTopic(self.topic_partitions, self.topic_replication_factor, settings, "transaction.state.log")
