"""Streams groups (KIP-1071). Names, defaults and valid values are those of Kafka 4.3."""

from typing import Final

from barnabas.base.config.definition import INT_MAX, Setting
from barnabas.base.config.definitions.shorthand import INT, MEDIUM, READ_ONLY
from barnabas.base.config.units import MINUTE_MS
from barnabas.base.config.validators import at_least

# A table: one line of facts and the meaning below it.
# fmt: off
SETTINGS: Final = (
    Setting("group.streams.session.timeout.ms", INT, 45_000, MEDIUM, at_least(1), READ_ONLY,
            "Session timeout of members of streams groups (KIP-1071)."),
    Setting("group.streams.min.session.timeout.ms", INT, 45_000, MEDIUM, at_least(1), READ_ONLY,
            "Shortest session timeout that a streams group may be given."),
    Setting("group.streams.max.session.timeout.ms", INT, MINUTE_MS, MEDIUM, at_least(1), READ_ONLY,
            "Longest session timeout that a streams group may be given."),
    Setting("group.streams.heartbeat.interval.ms", INT, 5_000, MEDIUM, at_least(1), READ_ONLY,
            "Heartbeat interval of members of streams groups."),
    Setting("group.streams.min.heartbeat.interval.ms", INT, 5_000, MEDIUM, at_least(1), READ_ONLY,
            "Shortest heartbeat interval that a streams group may be given."),
    Setting("group.streams.max.heartbeat.interval.ms", INT, 15_000, MEDIUM, at_least(1), READ_ONLY,
            "Longest heartbeat interval that a streams group may be given."),
    Setting("group.streams.max.size", INT, INT_MAX, MEDIUM, at_least(1), READ_ONLY,
            "Members that a streams group may have. Each thread of the application is one."),
    Setting("group.streams.num.standby.replicas", INT, 0, MEDIUM, at_least(0), READ_ONLY,
            "Standby tasks of each task with state."),
    Setting("group.streams.max.standby.replicas", INT, 2, MEDIUM, at_least(0), READ_ONLY,
            "Largest number of standby tasks that a streams group may be given."),
    Setting("group.streams.initial.rebalance.delay.ms", INT, 3_000, MEDIUM, at_least(0), READ_ONLY,
            "How long a new streams group waits for more members before its first assignment."),
    Setting("group.streams.assignment.interval.ms", INT, 1_000, MEDIUM, at_least(0), READ_ONLY,
            "Shortest time between two assignments of a streams group."),
    Setting("group.streams.min.assignment.interval.ms", INT, 0, MEDIUM, at_least(0), READ_ONLY,
            "Shortest assignment interval that a streams group may be given."),
    Setting("group.streams.max.assignment.interval.ms", INT, 15_000, MEDIUM, at_least(0), READ_ONLY,
            "Longest assignment interval that a streams group may be given."),
)
# fmt: on
