"""Share groups (KIP-932). Kafka 3.9 has a preview of them; names, defaults and valid values are those of Kafka 4.3."""

from typing import Final

from barnabas.base.config.definition import Setting
from barnabas.base.config.definitions import reasons
from barnabas.base.config.definitions.shorthand import BOOLEAN, CLUSTER_WIDE, INT, LOW, MEDIUM, READ_ONLY, SHORT, STRING
from barnabas.base.config.units import HOUR_MS, MINUTE_MS
from barnabas.base.config.validators import at_least, between

# A table: one line of facts and the meaning below it.
# fmt: off
SETTINGS: Final = (
    Setting("group.share.session.timeout.ms", INT, 45_000, MEDIUM, at_least(1), READ_ONLY,
            "Session timeout of members of share groups (KIP-932)."),
    Setting("group.share.min.session.timeout.ms", INT, 45_000, MEDIUM, at_least(1), READ_ONLY,
            "Shortest session timeout that a share group may be given."),
    Setting("group.share.max.session.timeout.ms", INT, MINUTE_MS, MEDIUM, at_least(1), READ_ONLY,
            "Longest session timeout that a share group may be given."),
    Setting("group.share.heartbeat.interval.ms", INT, 5_000, MEDIUM, at_least(1), READ_ONLY,
            "Heartbeat interval of members of share groups."),
    Setting("group.share.min.heartbeat.interval.ms", INT, 5_000, MEDIUM, at_least(1), READ_ONLY,
            "Shortest heartbeat interval that a share group may be given."),
    Setting("group.share.max.heartbeat.interval.ms", INT, 15_000, MEDIUM, at_least(1), READ_ONLY,
            "Longest heartbeat interval that a share group may be given."),
    Setting("group.share.max.size", INT, 200, MEDIUM, between(1, 1_000), READ_ONLY,
            "Members that a share group may have."),
    Setting("group.share.enable", BOOLEAN, False, MEDIUM, None, READ_ONLY,
            "Whether Kafka 3.9 serves its preview of share groups.", internal=True, no_effect=reasons.SHARE_ENABLE),
    Setting("group.share.max.groups", SHORT, 10, MEDIUM, between(1, 100), READ_ONLY,
            "Share groups in a cluster of Kafka 3.9.", no_effect=reasons.SHARE_GROUPS),
    Setting("group.share.delivery.count.limit", INT, 5, MEDIUM, between(2, 10), READ_ONLY,
            "Times that a record is delivered to a share group before it is given up."),
    Setting("group.share.min.delivery.count.limit", INT, 2, MEDIUM, between(2, 5), READ_ONLY,
            "Lowest limit of deliveries that a share group may be given."),
    Setting("group.share.max.delivery.count.limit", INT, 10, MEDIUM, between(5, 25), READ_ONLY,
            "Highest limit of deliveries that a share group may be given."),
    Setting("group.share.record.lock.duration.ms", INT, 30_000, MEDIUM, between(1_000, HOUR_MS), READ_ONLY,
            "How long a member of a share group holds a record that it has not acknowledged."),
    Setting("group.share.min.record.lock.duration.ms", INT, 15_000, MEDIUM, between(1_000, 30_000), READ_ONLY,
            "Shortest lock that a share group may be given."),
    Setting("group.share.max.record.lock.duration.ms", INT, MINUTE_MS, MEDIUM, between(30_000, HOUR_MS), READ_ONLY,
            "Longest lock that a share group may be given."),
    Setting("group.share.partition.max.record.locks", INT, 2_000, MEDIUM, between(100, 10_000), READ_ONLY,
            "Records of one partition that members of a share group may hold at the same time."),
    Setting("group.share.min.partition.max.record.locks", INT, 100, MEDIUM, between(100, 2_000), READ_ONLY,
            "Lowest limit of held records that a share group may be given."),
    Setting("group.share.max.partition.max.record.locks", INT, 4_000, MEDIUM, between(2_000, 10_000), READ_ONLY,
            "Highest limit of held records that a share group may be given."),
    Setting("group.share.max.share.sessions", INT, 2_000, MEDIUM, between(1, 10_000), READ_ONLY,
            "Share sessions that a broker keeps. A member has one with each broker that it fetches from."),
    Setting("errors.deadletterqueue.auto.create.topics.enable", BOOLEAN, False, MEDIUM, None, CLUSTER_WIDE,
            "Whether the dead-letter topic of a share group is created when the first record goes there."),
    Setting("errors.deadletterqueue.topic.name.prefix", STRING, "dlq.", MEDIUM, None, CLUSTER_WIDE,
            "Beginning of the names of dead-letter topics; empty: every topic that allows it can be one."),
    Setting("group.share.initialize.retry.interval.ms", INT, 30_000, LOW, at_least(1), READ_ONLY,
            "When a group coordinator asks again for the initial state of a share partition that a share coordinator did not "
            "confirm.", internal=True),
)
# fmt: on
