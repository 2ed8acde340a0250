"""Settings of KRaft mode, known so that a configuration file may hold them; `process.roles` itself is refused."""

from typing import Final

from barnabas.base.config.definition import LONG_MAX, Setting
from barnabas.base.config.definitions import reasons
from barnabas.base.config.definitions.shorthand import BOOLEAN, HIGH, INT, LIST, LONG, LOW, MEDIUM, READ_ONLY, STRING
from barnabas.base.config.units import DAY_MS, GIB, HOUR_MS, MIB, MINUTE_MS
from barnabas.base.config.validators import EachOf, at_least

# A table: one line of facts and the meaning below it.
# fmt: off
SETTINGS: Final = (
    Setting("process.roles", LIST, (), HIGH, EachOf("broker", "controller"), READ_ONLY,
            "Roles of a KRaft process. Not empty: refused here, where brokers run with ZooKeeper.",
            no_effect=reasons.REFUSED),
    Setting("node.id", INT, -1, HIGH, None, READ_ONLY,
            "Another name of broker.id; where both are set they must agree."),
    Setting("metadata.log.max.record.bytes.between.snapshots", LONG, 20 * MIB, HIGH, at_least(1), READ_ONLY,
            "Bytes of metadata log between two snapshots.", no_effect=reasons.KRAFT),
    Setting("metadata.log.max.snapshot.interval.ms", LONG, HOUR_MS, HIGH, at_least(0), READ_ONLY,
            "Time between two snapshots of the metadata log.", no_effect=reasons.KRAFT),
    Setting("initial.broker.registration.timeout.ms", INT, MINUTE_MS, MEDIUM, None, READ_ONLY,
            "How long a broker tries to register with the controller quorum.", no_effect=reasons.KRAFT),
    Setting("broker.heartbeat.interval.ms", INT, 2_000, MEDIUM, None, READ_ONLY,
            "Heartbeat interval of a broker to the controller quorum.", no_effect=reasons.KRAFT),
    Setting("broker.session.timeout.ms", INT, 9_000, MEDIUM, None, READ_ONLY,
            "Time without heartbeat after which the quorum fences a broker.", no_effect=reasons.KRAFT),
    Setting("controller.listener.names", STRING, None, HIGH, None, READ_ONLY,
            "Listeners of KRaft controllers. Not empty: refused here, as Kafka does with ZooKeeper.",
            no_effect=reasons.REFUSED),
    Setting("sasl.mechanism.controller.protocol", STRING, "GSSAPI", HIGH, None, READ_ONLY,
            "SASL mechanism towards KRaft controllers.", no_effect=reasons.KRAFT),
    Setting("metadata.log.dir", STRING, None, HIGH, None, READ_ONLY,
            "Directory of the metadata log.", no_effect=reasons.KRAFT),
    Setting("metadata.log.segment.bytes", INT, GIB, HIGH, at_least(12), READ_ONLY,
            "Segment size of the metadata log.", no_effect=reasons.KRAFT),
    Setting("metadata.log.segment.min.bytes", INT, 8 * MIB, HIGH, at_least(12), READ_ONLY,
            "Smallest segment size of the metadata log.", internal=True, no_effect=reasons.KRAFT),
    Setting("metadata.log.segment.ms", LONG, 7 * DAY_MS, HIGH, None, READ_ONLY,
            "Age at which a segment of the metadata log is closed.", no_effect=reasons.KRAFT),
    Setting("metadata.max.retention.bytes", LONG, 100 * MIB, HIGH, None, READ_ONLY,
            "Size of metadata log and snapshots beyond which old ones go.", no_effect=reasons.KRAFT),
    Setting("metadata.max.retention.ms", LONG, 7 * DAY_MS, HIGH, None, READ_ONLY,
            "Age beyond which metadata segments and snapshots go.", no_effect=reasons.KRAFT),
    Setting("metadata.max.idle.interval.ms", INT, 500, LOW, at_least(0), READ_ONLY,
            "How often an idle quorum leader writes a no-op.", no_effect=reasons.KRAFT),
    Setting("server.max.startup.time.ms", LONG, LONG_MAX, MEDIUM, at_least(0), READ_ONLY,
            "Time after which a KRaft server gives up starting.", internal=True, no_effect=reasons.KRAFT),
    Setting("zookeeper.metadata.migration.enable", BOOLEAN, False, HIGH, None, READ_ONLY,
            "Migration of a ZooKeeper cluster to KRaft. true: refused here.",
            no_effect=reasons.REFUSED),
    Setting("eligible.leader.replicas.enable", BOOLEAN, False, HIGH, None, READ_ONLY,
            "Eligible leader replicas (KIP-966).", no_effect=reasons.KRAFT),
    Setting("zookeeper.metadata.migration.min.batch.size", INT, 200, MEDIUM, at_least(1), READ_ONLY,
            "Records per batch in a migration to KRaft.", internal=True, no_effect=reasons.KRAFT),
    Setting("controller.quorum.voters", LIST, (), HIGH, None, READ_ONLY,
            "Members of the controller quorum.", no_effect=reasons.KRAFT),
    Setting("controller.quorum.bootstrap.servers", LIST, (), HIGH, None, READ_ONLY,
            "Addresses where the controller quorum is looked for.", no_effect=reasons.KRAFT),
    Setting("controller.quorum.election.timeout.ms", INT, 1_000, HIGH, None, READ_ONLY,
            "Time without contact to a leader before a new election.", no_effect=reasons.KRAFT),
    Setting("controller.quorum.fetch.timeout.ms", INT, 2_000, HIGH, None, READ_ONLY,
            "Time without a successful fetch before a new election.", no_effect=reasons.KRAFT),
    Setting("controller.quorum.election.backoff.max.ms", INT, 1_000, HIGH, None, READ_ONLY,
            "Longest pause between elections.", no_effect=reasons.KRAFT),
    Setting("controller.quorum.append.linger.ms", INT, 25, MEDIUM, None, READ_ONLY,
            "How long the quorum leader gathers writes.", no_effect=reasons.KRAFT),
    Setting("controller.quorum.request.timeout.ms", INT, 2_000, MEDIUM, None, READ_ONLY,
            "How long a request of the quorum may take.", no_effect=reasons.KRAFT),
    Setting("controller.quorum.retry.backoff.ms", INT, 20, LOW, None, READ_ONLY,
            "Pause before such a request is tried again.", no_effect=reasons.KRAFT),
)
# fmt: on
