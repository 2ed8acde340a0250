"""A group's settings (resource type 32): its own, and the broker's for the rest.

Names, valid values and messages are those of Kafka 4.3's GroupConfig. A broker bounds most of them:
`group.consumer.min.session.timeout.ms` and `group.consumer.max.session.timeout.ms` bound `consumer.session.timeout.ms`. A
change outside the bounds is refused. A value in ZooKeeper outside the bounds of this broker counts as the nearest one that is
valid.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.definition import Setting, Value, invalid
from barnabas.base.config.definitions.shorthand import BOOLEAN, GROUP, INT, MEDIUM, STRING
from barnabas.base.config.validators import at_least, one_of
from barnabas.base.errors import ConfigError
from barnabas.base.names import did_you_mean
from barnabas.base.times import duration_ms

READ_UNCOMMITTED: Final = "read_uncommitted"
READ_COMMITTED: Final = "read_committed"

#: Timestamps of ListOffsets.
_LATEST: Final = -1
_EARLIEST: Final = -2
_BY_DURATION: Final = "by_duration:"


class OffsetResetKind(Enum):
    LATEST = "latest"
    EARLIEST = "earliest"
    BY_DURATION = "by_duration"


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Where a share group begins to read a partition."""

    kind: OffsetResetKind
    #: For BY_DURATION: how long ago.
    duration_ms: int = 0

    @classmethod
    def parse(cls, text: str) -> "OffsetReset":
        """:raises ValueError: unless the text is `latest`, `earliest` or `by_duration:PnDTnHnMn.nS`."""
        if not text.startswith(_BY_DURATION):
            kind = OffsetResetKind(text)
            if kind is OffsetResetKind.BY_DURATION:
                raise ValueError("a duration is missing")
            return cls(kind)
        ago_ms = duration_ms(text.removeprefix(_BY_DURATION))
        if ago_ms < 0:
            raise ValueError("a negative duration")
        return cls(OffsetResetKind.BY_DURATION, ago_ms)

    def timestamp_ms(self, now_ms: int) -> int:
        """Return the time for which ListOffsets finds the offset: -1 is the end, -2 the start of the log."""
        match self.kind:
            case OffsetResetKind.LATEST:
                return _LATEST
            case OffsetResetKind.EARLIEST:
                return _EARLIEST
            case OffsetResetKind.BY_DURATION:
                return max(now_ms - self.duration_ms, 0)


class _OffsetResetText:
    def check(self, name: str, value: Value) -> None:
        try:
            OffsetReset.parse(str(value))
        except ValueError:
            raise invalid(
                name,
                value,
                f"Invalid value `{value}` for configuration {name}. The value must be either 'earliest', 'latest' or of the "
                "format 'by_duration:<PnDTnHnMn.nS>'.",
            ) from None

    def __str__(self) -> str:
        return "[latest, earliest, by_duration:PnDTnHnMn.nS]"


def _setting(name: str, default: int, meaning: str, *, lowest: int = 1, of_broker: str, no_effect: str = "") -> Setting:
    valid = at_least(lowest)
    return Setting(name, INT, default, MEDIUM, valid, GROUP, meaning, server_default=of_broker, no_effect=no_effect)


# fmt: off
SETTINGS: Final = (
    _setting("consumer.session.timeout.ms", 45_000, "Session timeout of the members of the consumer group.",
             of_broker="group.consumer.session.timeout.ms"),
    _setting("consumer.heartbeat.interval.ms", 5_000, "Heartbeat interval of the members of the consumer group.",
             of_broker="group.consumer.heartbeat.interval.ms"),
    _setting("share.session.timeout.ms", 45_000, "Session timeout of the members of the share group.",
             of_broker="group.share.session.timeout.ms"),
    _setting("share.heartbeat.interval.ms", 5_000, "Heartbeat interval of the members of the share group.",
             of_broker="group.share.heartbeat.interval.ms"),
    _setting("share.record.lock.duration.ms", 30_000,
             "How long a member of the share group holds a record that it has not acknowledged.",
             lowest=1_000, of_broker="group.share.record.lock.duration.ms"),
    _setting("share.delivery.count.limit", 5,
             "Times that a record is delivered to the share group before it is given up.",
             lowest=2, of_broker="group.share.delivery.count.limit"),
    _setting("share.partition.max.record.locks", 2_000,
             "Records of one partition that members of the share group may hold at the same time.",
             lowest=100, of_broker="group.share.partition.max.record.locks"),
    Setting("share.auto.offset.reset", STRING, "latest", MEDIUM, _OffsetResetText(), GROUP,
            "Where the share group begins to read a partition: at its start (earliest), at its end (latest), or at the "
            "records of a time ago (by_duration:PT1H)."),
    Setting("share.isolation.level", STRING, READ_UNCOMMITTED, MEDIUM, one_of(READ_COMMITTED, READ_UNCOMMITTED), GROUP,
            "Whether the share group gets records of all transactions (read_uncommitted) or only of committed ones "
            "(read_committed)."),
    Setting("share.renew.acknowledge.enable", BOOLEAN, True, MEDIUM, None, GROUP,
            "Whether members of the share group may hold a record for longer (acknowledge type RENEW)."),
    Setting("errors.deadletterqueue.topic.name", STRING, "", MEDIUM, None, GROUP,
            "Topic to which records are copied that the share group gives up (KIP-1191); empty: they are not."),
    Setting("errors.deadletterqueue.copy.record.enable", BOOLEAN, False, MEDIUM, None, GROUP,
            "Whether dead letters have the key and the value of the record, and not only headers that name it."),
    _setting("streams.session.timeout.ms", 45_000, "Session timeout of the members of the streams group.",
             of_broker="group.streams.session.timeout.ms"),
    _setting("streams.heartbeat.interval.ms", 5_000, "Heartbeat interval of the members of the streams group.",
             of_broker="group.streams.heartbeat.interval.ms"),
    _setting("streams.num.standby.replicas", 0, "Standby tasks of each task of the streams group that has state.",
             lowest=0, of_broker="group.streams.num.standby.replicas"),
    _setting("streams.initial.rebalance.delay.ms", 3_000,
             "How long a new streams group waits for more members before its first assignment.",
             lowest=0, of_broker="group.streams.initial.rebalance.delay.ms"),
    _setting("streams.assignment.interval.ms", 1_000, "Shortest time between two assignments of the streams group.",
             lowest=0, of_broker="group.streams.assignment.interval.ms"),
)
# fmt: on

GROUP_SETTINGS: Final[Mapping[str, Setting]] = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Without arguments: a group without its own settings, on a broker without its own settings."""

    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    share_session_timeout_ms: int = 45_000
    share_heartbeat_interval_ms: int = 5_000
    share_record_lock_duration_ms: int = 30_000
    share_delivery_count_limit: int = 5
    share_partition_max_record_locks: int = 2_000
    share_auto_offset_reset: OffsetReset = OffsetReset(OffsetResetKind.LATEST)
    share_isolation_level: str = READ_UNCOMMITTED
    share_renew_acknowledge_enable: bool = True
    errors_deadletterqueue_topic_name: str = ""
    errors_deadletterqueue_copy_record_enable: bool = False
    streams_session_timeout_ms: int = 45_000
    streams_heartbeat_interval_ms: int = 5_000
    streams_num_standby_replicas: int = 0
    streams_initial_rebalance_delay_ms: int = 3_000
    streams_assignment_interval_ms: int = 1_000


class _Bounds(NamedTuple):
    setting: Setting
    lowest_name: str
    lowest: int
    highest_name: str
    highest: int


#: Settings whose bounds do not follow from their name: the broker settings of the lowest and the highest value.
_OTHER_BOUNDS: Final[Mapping[str, tuple[str, str] | None]] = {
    "streams.num.standby.replicas": ("", "group.streams.max.standby.replicas"),
    "streams.initial.rebalance.delay.ms": None,
}


def _bounds(config: BrokerConfig) -> Iterator[_Bounds]:
    for setting in SETTINGS:
        if setting.server_default is None:
            continue
        _, kind, what = setting.server_default.split(".", 2)
        names = _OTHER_BOUNDS.get(setting.name, (f"group.{kind}.min.{what}", f"group.{kind}.max.{what}"))
        if names is not None:
            low = _integer(config.values[names[0]]) if names[0] else 0
            yield _Bounds(setting, names[0], low, names[1], _integer(config.values[names[1]]))


def _integer(value: Value) -> int:
    assert isinstance(value, int)
    return value


def group_values(config: BrokerConfig, overrides: Mapping[str, str]) -> dict[str, Value]:
    """Return the value of every setting of a group by name, whether or not it is within the broker's bounds.

    :raises ConfigError: if a value cannot be used.
    """
    values: dict[str, Value] = {}
    for name, setting in GROUP_SETTINGS.items():
        if name in overrides:
            values[name] = setting.parse(overrides[name])
        else:
            values[name] = setting.default if setting.server_default is None else config.values[setting.server_default]
    return values


def group_config(config: BrokerConfig, overrides: Mapping[str, str]) -> tuple[GroupConfig, tuple[str, ...]]:
    """Return the settings of a group that has these settings of its own, and the reasons for values that were corrected."""
    values = group_values(config, overrides)
    corrected: list[str] = []
    for setting, lowest_name, lowest, highest_name, highest in _bounds(config):
        value = _integer(values[setting.name])
        if value < lowest:
            values[setting.name] = lowest
            corrected.append(f"{setting.name}={value} counts as {lowest}: {lowest_name} is {lowest}")
        elif value > highest:
            values[setting.name] = highest
            corrected.append(f"{setting.name}={value} counts as {highest}: {highest_name} is {highest}")
    fields = {GROUP_SETTINGS[name].attribute: value for name, value in values.items()}
    reset = OffsetReset.parse(str(fields.pop("share_auto_offset_reset")))
    return GroupConfig(share_auto_offset_reset=reset, **fields), tuple(corrected)  # type: ignore[arg-type]


def check_group_setting(name: str, raw: str) -> None:
    """:raises ConfigError: for an unknown name, or a value that no broker accepts."""
    setting = GROUP_SETTINGS.get(name)
    if setting is None:
        raise ConfigError(f"Unknown group config name: {name}{did_you_mean(name, GROUP_SETTINGS)}")
    setting.parse(raw)


def validate_group_config(config: BrokerConfig, proposed: Mapping[str, str]) -> None:
    """Refuse settings that a group cannot have.

    :raises ConfigError: with Kafka's message.
    """
    for name, raw in proposed.items():
        check_group_setting(name, raw)
    values = group_values(config, proposed)
    for setting, lowest_name, lowest, highest_name, highest in _bounds(config):
        value = _integer(values[setting.name])
        if value < lowest:
            raise ConfigError(f"{setting.name} must be greater than or equal to {lowest_name} ({lowest})")
        if value > highest:
            raise ConfigError(f"{setting.name} must be less than or equal to {highest_name} ({highest})")
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if _integer(values[session]) <= _integer(values[heartbeat]):
            raise ConfigError(f"{session} must be greater than {heartbeat}")
