"""Quotas: the broker's windows, limits that exist only dynamically, and limits of clients, users and addresses."""

from typing import Final

from barnabas.base.config.definition import INT_MAX, LONG_MAX, Setting
from barnabas.base.config.definitions import reasons
from barnabas.base.config.definitions.shorthand import (
    CLASS,
    CLUSTER_WIDE,
    DOUBLE,
    INT,
    LONG,
    LOW,
    MEDIUM,
    READ_ONLY,
    TOPIC,
)
from barnabas.base.config.validators import at_least

# A table: one line of facts and the meaning below it.
# fmt: off
SETTINGS: Final = (
    Setting("quota.window.num", INT, 11, LOW, at_least(1), READ_ONLY,
            "Windows over which client quotas are measured."),
    Setting("quota.window.size.seconds", INT, 1, LOW, at_least(1), READ_ONLY,
            "Length of a window of client quotas."),
    Setting("replication.quota.window.num", INT, 11, LOW, at_least(1), READ_ONLY,
            "Windows over which replication throttles are measured."),
    Setting("replication.quota.window.size.seconds", INT, 1, LOW, at_least(1), READ_ONLY,
            "Length of a window of replication throttles."),
    Setting("alter.log.dirs.replication.quota.window.num", INT, 11, LOW, at_least(1), READ_ONLY,
            "Windows over which moves between log directories are measured."),
    Setting("alter.log.dirs.replication.quota.window.size.seconds", INT, 1, LOW, at_least(1), READ_ONLY,
            "Length of a window for moves between log directories."),
    Setting("controller.quota.window.num", INT, 11, LOW, at_least(1), READ_ONLY,
            "Windows over which quotas on topic changes are measured."),
    Setting("controller.quota.window.size.seconds", INT, 1, LOW, at_least(1), READ_ONLY,
            "Length of a window of quotas on topic changes."),
    Setting("client.quota.callback.class", CLASS, None, LOW, None, READ_ONLY,
            "Java class that decides client quotas.", no_effect=reasons.JAVA),
)

#: Set only through AlterConfigs: a properties file cannot set them.
DYNAMIC_ONLY: Final = (
    Setting("leader.replication.throttled.rate", LONG, LONG_MAX, MEDIUM, at_least(0), CLUSTER_WIDE,
            "Bytes per second that this broker, as leader, sends to throttled replicas."),
    Setting("follower.replication.throttled.rate", LONG, LONG_MAX, MEDIUM, at_least(0), CLUSTER_WIDE,
            "Bytes per second that this broker, as follower, fetches for throttled replicas."),
    Setting("replica.alter.log.dirs.io.max.bytes.per.second", LONG, LONG_MAX, MEDIUM, at_least(0), CLUSTER_WIDE,
            "Bytes per second for moving replicas between log directories of this broker."),
)

#: Quotas of users and client ids.
CLIENT_QUOTAS: Final = (
    Setting("producer_byte_rate", LONG, LONG_MAX, MEDIUM, None, TOPIC,
            "Bytes per second that a client may produce to one broker."),
    Setting("consumer_byte_rate", LONG, LONG_MAX, MEDIUM, None, TOPIC,
            "Bytes per second that a client may fetch from one broker."),
    Setting("request_percentage", DOUBLE, 2147483647.0, MEDIUM, None, TOPIC,
            "Share of one broker's handler time that a client may use, in percent."),
    Setting("controller_mutation_rate", DOUBLE, 2147483647.0, MEDIUM, None, TOPIC,
            "Partitions per second that a client may create or delete."),
)

#: Quotas of IP addresses.
IP_QUOTAS: Final = (
    Setting("connection_creation_rate", INT, INT_MAX, MEDIUM, at_least(0), TOPIC,
            "Connections per second that one address may open."),
)
# fmt: on
