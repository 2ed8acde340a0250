"""The transaction coordinator's settings, as one immutable value."""

from dataclasses import dataclass
from typing import Final

from barnabas.base.config.derived import setting
from barnabas.base.topics import NewInternalTopic

#: Settings of the topic that the operator cannot change.
_ENFORCED: Final = {
    "unclean.leader.election.enable": "false",
    "compression.type": "uncompressed",
    "cleanup.policy": "compact",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    transaction_max_timeout_ms: int = setting("transaction.max.timeout.ms")
    transactional_id_expiration_ms: int = setting("transactional.id.expiration.ms")
    expired_cleanup_interval_ms: int = setting("transaction.remove.expired.transaction.cleanup.interval.ms")
    two_phase_commit_enable: bool = setting("transaction.two.phase.commit.enable")
    request_timeout_ms: int = setting("request.timeout.ms")
    topic_partitions: int = setting("transaction.state.log.num.partitions")
    topic_replication_factor: int = setting("transaction.state.log.replication.factor")
    topic_min_isr: int = setting("transaction.state.log.min.isr")
    topic_segment_bytes: int = setting("transaction.state.log.segment.bytes")

    @property
    def new_topic(self) -> NewInternalTopic:
        """Return `__transaction_state` as it is created."""
        settings = {
            **_ENFORCED,
            "min.insync.replicas": str(self.topic_min_isr),
            "segment.bytes": str(self.topic_segment_bytes),
        }
        return NewInternalTopic(self.topic_partitions, self.topic_replication_factor, settings, "transaction.state.log")
