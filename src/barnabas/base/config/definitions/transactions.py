"""Transactions and the memory of producers."""

from typing import Final

from barnabas.base.config.definition import Setting
from barnabas.base.config.definitions import reasons
from barnabas.base.config.definitions.shorthand import BOOLEAN, CLUSTER_WIDE, HIGH, INT, LOW, READ_ONLY, SHORT
from barnabas.base.config.units import DAY_MS, HOUR_MS, MIB, MINUTE_MS
from barnabas.base.config.validators import at_least

# A table: one line of facts and the meaning below it.
# fmt: off
SETTINGS: Final = (
    Setting("transaction.state.log.min.isr", INT, 2, HIGH, at_least(1), READ_ONLY,
            "min.insync.replicas of __transaction_state."),
    Setting("transaction.state.log.load.buffer.size", INT, 5 * MIB, HIGH, at_least(1), READ_ONLY,
            "Bytes that are read at a time when a coordinator loads transactions. A larger batch is still read.",
            no_effect=reasons.LOAD),
    Setting("transaction.state.log.replication.factor", SHORT, 3, HIGH, at_least(1), READ_ONLY,
            "Replicas of __transaction_state. Its creation waits until there are as many brokers."),
    Setting("transaction.state.log.num.partitions", INT, 50, HIGH, at_least(1), READ_ONLY,
            "Partitions of __transaction_state; not to be changed once it exists."),
    Setting("transaction.state.log.segment.bytes", INT, 100 * MIB, HIGH, at_least(1), READ_ONLY,
            "Segment size of __transaction_state: small, so that compaction and loading are quick."),
    Setting("transaction.partition.verification.enable", BOOLEAN, True, LOW, None, CLUSTER_WIDE,
            "Whether a leader asks the coordinator if a partition belongs to the transaction before it appends, "
            "which prevents hanging transactions."),
    Setting("producer.id.expiration.ms", INT, DAY_MS, LOW, at_least(1), CLUSTER_WIDE,
            "How long a partition remembers an idle producer's sequence numbers; at least the clients' delivery "
            "timeout."),
    Setting("producer.id.expiration.check.interval.ms", INT, 10 * MINUTE_MS, LOW, at_least(1), READ_ONLY,
            "How often expired producer ids are looked for.", internal=True),
    Setting("transactional.id.expiration.ms", INT, 7 * DAY_MS, HIGH, at_least(1), READ_ONLY,
            "How long the coordinator remembers an idle transactional id."),
    Setting("transaction.max.timeout.ms", INT, 15 * MINUTE_MS, HIGH, at_least(1), READ_ONLY,
            "Longest transaction timeout that a client may ask for."),
    Setting("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, 10_000, LOW, at_least(1), READ_ONLY,
            "How often transactions past their timeout are looked for and aborted.",
            no_effect=reasons.TIMERS),
    Setting("transaction.remove.expired.transaction.cleanup.interval.ms", INT, HOUR_MS, LOW, at_least(1), READ_ONLY,
            "How often expired transactional ids are looked for and removed."),
)
# fmt: on
