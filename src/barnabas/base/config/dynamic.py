"""Settings that change while the broker runs: layers, precedence, allowed changes, and notifications.

A broker's value is its own dynamic one, else the cluster's dynamic default, else the file's, else Kafka's default. A
topic's value is its own, else the broker's. This module does no I/O: the owner of the watches on /config in ZooKeeper calls
`set_broker`, `set_cluster_default`, `set_topic`, `set_group` and `set_client_metrics` with decrypted passwords.

Owner: the event loop.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.catalog import (
    BROKER_SETTINGS,
    CLUSTER_LISTENER_NAMES,
    DYNAMIC_NAMES,
    DYNAMIC_ONLY_SETTINGS,
    DYNAMIC_SECURITY_NAMES,
    PER_BROKER_NAMES,
    TOPIC_SETTINGS,
    broker_synonyms,
    listener_base_name,
)
from barnabas.base.config.client_metrics_config import (
    CLIENT_METRICS_SETTINGS,
    ClientMetricsConfig,
    client_metrics_config,
)
from barnabas.base.config.group_config import GroupConfig, check_group_setting, group_config
from barnabas.base.config.log_config import AS_RETENTION, LogConfig
from barnabas.base.config.topic import log_config, topic_defaults
from barnabas.base.errors import ConfigError, ErrorCode, Refused

BrokerListener = Callable[[BrokerConfig, BrokerConfig], None]
TopicListener = Callable[[str, LogConfig], None]
#: Checks whether these settings may replace the current ones. Raises `ConfigError` if they may not.
TransitionCheck = Callable[[BrokerConfig], None]

#: Sizes of thread pools, which Kafka lets change at most by a factor of two.
_POOLS: Final = ("num.io.threads", "num.replica.fetchers", "num.recovery.threads.per.data.dir", "background.threads")


_UNLIMITED: Final = -1


class DynamicConfig:
    """The layers of one broker's settings, and the settings of all topics and groups.

    Invariant: `broker` and every `log_config` follow from the layers. Readers never see half a change.
    """

    def __init__(self, static: Mapping[str, str]) -> None:
        """:raises ConfigError: if a broker cannot start with `static`."""
        self._broker = BrokerConfig.parse(static)
        self._static: Final = self._broker.originals
        self._cluster_default: Mapping[str, str] = {}
        self._own: Mapping[str, str] = {}
        self._overrides: dict[str, Mapping[str, str]] = {}
        self._logs: dict[str, LogConfig] = {}
        self._plain_log = log_config(self._broker)
        self._groups: dict[str, GroupConfig] = {}
        #: Subscriptions to metrics of clients, by name. Replaced as a whole, so that its identity shows a change.
        self.client_metrics: Mapping[str, ClientMetricsConfig] = {}
        # The broker's settings for groups do not change while it runs.
        self._plain_group = group_config(self._broker, {})[0]
        self._broker_listeners: list[BrokerListener] = []
        self._topic_listeners: list[TopicListener] = []
        self._checks: list[TransitionCheck] = []

    @property
    def broker(self) -> BrokerConfig:
        """The current settings."""
        return self._broker

    @property
    def static(self) -> Mapping[str, str]:
        """The settings from the file and the command line."""
        return self._static

    @property
    def cluster_default(self) -> Mapping[str, str]:
        return self._cluster_default

    @property
    def own(self) -> Mapping[str, str]:
        """This broker's dynamic settings."""
        return self._own

    def subscribe(self, listener: BrokerListener) -> Callable[[], None]:
        """Call `listener(old, new)` after each change of the broker's settings. The returned function ends the subscription."""
        self._broker_listeners.append(listener)
        return lambda: self._broker_listeners.remove(listener)

    def add_check(self, check: TransitionCheck) -> None:
        """Run `check` before a change is accepted. It is for checks that only its owner can make, for example of a
        certificate."""
        self._checks.append(check)

    def subscribe_topics(self, listener: TopicListener) -> Callable[[], None]:
        """Call `listener(topic, config)` after each change of a topic's settings, by its own or the broker's settings.

        For topics without their own settings the listener is called once, with an empty name.
        """
        self._topic_listeners.append(listener)
        return lambda: self._topic_listeners.remove(listener)

    @property
    def topics(self) -> Iterable[str]:
        """Topics that have their own settings."""
        return tuple(self._overrides)

    def log_config(self, topic: str) -> LogConfig:
        return self._logs.get(topic, self._plain_log)

    def set_topic(self, topic: str, overrides: Mapping[str, str]) -> tuple[str, ...]:
        """Replace a topic's settings. Return the reasons for settings that are ignored."""
        usable, ignored = _usable(overrides, self._check_topic_entry)
        before = self.log_config(topic)
        if usable:
            self._overrides[topic] = usable
            self._logs[topic] = log_config(self._broker, usable)
        else:
            self._overrides.pop(topic, None)
            self._logs.pop(topic, None)
        if self.log_config(topic) != before:
            self._notify_topic(topic)
        return ignored

    @property
    def groups(self) -> Iterable[str]:
        """Groups that have their own settings."""
        return tuple(self._groups)

    def group_config(self, group_id: str) -> GroupConfig:
        """Return the present settings of a group, also of one that does not exist."""
        return self._groups.get(group_id, self._plain_group)

    def set_group(self, group_id: str, overrides: Mapping[str, str]) -> tuple[str, ...]:
        """Replace a group's settings. Return the reasons for settings that are ignored or corrected."""
        usable, ignored = _usable(overrides, check_group_setting)
        if not usable:
            self._groups.pop(group_id, None)
            return ignored
        self._groups[group_id], corrected = group_config(self._broker, usable)
        return tuple(f"[settings of group {group_id}] {line}" for line in ignored + corrected)

    def set_client_metrics(self, name: str, settings: Mapping[str, str]) -> tuple[str, ...]:
        """Replace a subscription to metrics of clients; empty settings end it. Return the reasons for settings that are
        ignored."""
        usable, ignored = _usable(settings, self._check_client_metrics_entry)
        others = {each: config for each, config in self.client_metrics.items() if each != name}
        self.client_metrics = {**others, name: client_metrics_config(usable)} if usable else others
        return tuple(f"[client metrics {name}] {line}" for line in ignored)

    def set_broker(self, settings: Mapping[str, str]) -> tuple[str, ...]:
        """Replace this broker's dynamic settings. Return the reasons for settings that are ignored: those already in ZooKeeper
        cannot be refused, and one bad setting must not prevent the others from taking effect."""
        usable, ignored = usable_of_broker(settings, per_broker=True)
        return ignored + self._apply(self._cluster_default, usable)

    def set_cluster_default(self, settings: Mapping[str, str]) -> tuple[str, ...]:
        """Like `set_broker`, for the cluster's dynamic defaults."""
        usable, ignored = usable_of_broker(settings, per_broker=False)
        return ignored + self._apply(usable, self._own)

    def validate_broker_change(self, proposed: Mapping[str, str], *, per_broker: bool) -> None:
        """Check whether `proposed` can become this broker's dynamic settings, or the cluster's defaults.

        :raises Refused: INVALID_REQUEST, with Kafka's message.
        """
        try:
            _check_names(proposed, per_broker=per_broker)
            for name, raw in proposed.items():
                _check_type(name, raw)
            cluster_default, own = (self._cluster_default, proposed) if per_broker else (proposed, self._own)
            self._check_transition(self._merge(cluster_default, own))
        except ConfigError as error:
            raise Refused(ErrorCode.INVALID_REQUEST, str(error)) from error

    def _apply(self, cluster_default: Mapping[str, str], own: Mapping[str, str]) -> tuple[str, ...]:
        try:
            config = self._merge(cluster_default, own)
        except ConfigError as error:
            return (f"the settings do not fit together and are ignored: {error}",)
        self._cluster_default, self._own = cluster_default, own
        before, self._broker = self._broker, config
        if config == before:
            return ()
        changed = topic_defaults(config) != topic_defaults(before)
        if changed:
            self._plain_log = log_config(config)
            self._logs = {topic: log_config(config, overrides) for topic, overrides in self._overrides.items()}
        for listener in tuple(self._broker_listeners):
            listener(before, config)
        if changed:
            for topic in ("", *self._logs):
                self._notify_topic(topic)
        return ()

    def _notify_topic(self, topic: str) -> None:
        for listener in tuple(self._topic_listeners):
            listener(topic, self.log_config(topic))

    def _merge(self, cluster_default: Mapping[str, str], own: Mapping[str, str]) -> BrokerConfig:
        merged = dict(self._static)
        for layer in (cluster_default, own):
            for name, raw in layer.items():
                # A dynamic log.retention.ms overrides a log.retention.minutes in the file, and vice versa.
                for synonym in broker_synonyms(name, match_listener=False):
                    merged.pop(synonym, None)
                merged[name] = raw
        limits = {
            name: raw
            for layer in (cluster_default, own)
            for name, raw in layer.items()
            if name in DYNAMIC_ONLY_SETTINGS
        }
        return BrokerConfig.parse(merged, dynamic_only=limits)

    @staticmethod
    def _check_topic_entry(name: str, raw: str) -> None:
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            raise ConfigError(f"Unknown topic config name: {name}")
        setting.parse(raw)

    @staticmethod
    def _check_client_metrics_entry(name: str, raw: str) -> None:
        setting = CLIENT_METRICS_SETTINGS.get(name)
        if setting is None:
            raise ConfigError(f"Unknown client metrics configuration: {name}")
        setting.parse(raw)

    def _check_transition(self, config: BrokerConfig) -> None:
        """Refuse the changes that Kafka's components refuse at run time."""
        try:
            _check_pools(self._broker, config)
            _check_listeners(self._broker, config)
            _check_listener_limits(self._broker, config)
            _check_local_retention(self._broker, config)
            for check in self._checks:
                check(config)
        except ConfigError as error:
            raise ConfigError(f"Invalid dynamic configuration: {error}") from error


def usable_of_broker(settings: Mapping[str, str], *, per_broker: bool) -> tuple[dict[str, str], tuple[str, ...]]:
    """Split the dynamic settings of a broker, or of the cluster's defaults, into usable ones and reasons for ignored ones."""
    return _usable(settings, lambda name, raw: _check_entry(name, raw, per_broker=per_broker))


def _usable(settings: Mapping[str, str], check: Callable[[str, str], None]) -> tuple[dict[str, str], tuple[str, ...]]:
    usable: dict[str, str] = {}
    ignored: list[str] = []
    for name, raw in settings.items():
        try:
            check(name, raw)
        except ConfigError as error:
            ignored.append(f"{name} is ignored: {error}")
        else:
            usable[name] = raw
    return usable, tuple(ignored)


def _scala_set(names: Iterable[str]) -> str:
    return f"Set({', '.join(names)})"


def _check_entry(name: str, raw: str, *, per_broker: bool) -> None:
    _check_names((name,), per_broker=per_broker)
    _check_type(name, raw)


def _check_names(names: Iterable[str], *, per_broker: bool) -> None:
    names = list(names)
    fixed = [name for name in names if name in BROKER_SETTINGS and name not in DYNAMIC_NAMES]
    if fixed:
        raise ConfigError(f"Cannot update these configs dynamically: {_scala_set(fixed)}")
    plain = [name for name in names if name in DYNAMIC_SECURITY_NAMES]
    if plain:
        raise ConfigError(
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            f"{_scala_set(plain)}"
        )
    if not per_broker:
        own = [name for name in names if _is_per_broker(name)]
        if own:
            raise ConfigError(
                f"Cannot update these configs at default cluster level, broker id must be specified: {_scala_set(own)}"
            )


def _is_per_broker(name: str) -> bool:
    base = listener_base_name(name)
    return name in PER_BROKER_NAMES or (base is not None and base not in CLUSTER_LISTENER_NAMES)


def _check_type(name: str, raw: str) -> None:
    """Check the value's type. Unknown names pass: they may belong to a plug-in."""
    plain = listener_base_name(name) or name
    setting = DYNAMIC_ONLY_SETTINGS.get(plain) or BROKER_SETTINGS.get(plain)
    if setting is not None:
        setting.parse(raw)


def _check_pools(before: BrokerConfig, after: BrokerConfig) -> None:
    for name in _POOLS:
        old, new = before.values[name], after.values[name]
        assert isinstance(old, int) and isinstance(new, int), name
        _check_pool(name, old, new)
    old, new = before.values["log.cleaner.threads"], after.values["log.cleaner.threads"]
    assert isinstance(old, int) and isinstance(new, int)
    if new != old:
        if new < old // 2:
            raise ConfigError(f"Log cleaner threads cannot be reduced to less than half the current value {old}")
        if new > old * 2:
            raise ConfigError(f"Log cleaner threads cannot be increased to more than double the current value {old}")


def _check_pool(name: str, old: int, new: int) -> None:
    failed = f"Dynamic thread count update validation failed for {name}={new}"
    if new == old:
        return
    if new <= 0:
        raise ConfigError(f"{failed}, value should be at least 1")
    if new < old // 2:
        raise ConfigError(f"{failed}, value should be at least half the current value {old}")
    if new > old * 2:
        raise ConfigError(f"{failed}, value should not be greater than double the current value {old}")


def _check_listener_limits(before: BrokerConfig, after: BrokerConfig) -> None:
    """Refuse a limit of 0: it would lock out all clients, including those that could raise it again."""
    for listener in after.listeners:
        for name in sorted(CLUSTER_LISTENER_NAMES):
            old, new = before.for_listener(listener.name, name), after.for_listener(listener.name, name)
            assert isinstance(old, int) and isinstance(new, int), name
            if name == "num.network.threads":
                _check_pool(name, old, new)
            elif new <= 0 and new != old:
                raise ConfigError(f"Invalid {name} {new}")


def _check_local_retention(before: BrokerConfig, after: BrokerConfig) -> None:
    """Check that tiered topics keep no more on the brokers' disks than in total."""
    for local_name, name in (
        ("log.local.retention.ms", "log.retention.ms"),
        ("log.local.retention.bytes", "log.retention.bytes"),
    ):
        local, total = (_retention(after, each) for each in (local_name, name))
        if (local, total) == tuple(_retention(before, each) for each in (local_name, name)):
            continue
        if total == _UNLIMITED or local == AS_RETENTION:
            continue
        if local == _UNLIMITED:
            raise ConfigError(
                f"Invalid value {local} for configuration {local_name}: Value must not be {_UNLIMITED} as {name} value is "
                f"set as {total}."
            )
        if local > total:
            raise ConfigError(
                f"Invalid value {local} for configuration {local_name}: Value must not be more than {name} property "
                f"value: {total}"
            )


def _retention(config: BrokerConfig, name: str) -> int:
    value = config.log_retention_ms if name == "log.retention.ms" else config.values[name]
    assert isinstance(value, int), name
    return value


def _check_listeners(before: BrokerConfig, after: BrokerConfig) -> None:
    """Check that an existing listener keeps its security protocol, and its settings except the dynamic ones."""
    kept = {listener.name for listener in before.listeners} & {listener.name for listener in after.listeners}
    for name in sorted(kept):
        if _fixed_listener_settings(before, name) != _fixed_listener_settings(after, name):
            raise ConfigError(
                f"Configs cannot be updated dynamically for existing listener {name}, "
                "restart broker or create a new listener for update"
            )
        if before.listener_security_protocol_map[name] != after.listener_security_protocol_map[name]:
            raise ConfigError(f"Security protocol cannot be updated for existing listener {name}")


def _fixed_listener_settings(config: BrokerConfig, listener: str) -> dict[str, str]:
    prefix = f"listener.name.{listener.lower()}."
    return {
        name: raw
        for name, raw in config.originals.items()
        if name.startswith(prefix)
        and name.removeprefix(prefix) not in DYNAMIC_SECURITY_NAMES
        and name.removeprefix(prefix) not in CLUSTER_LISTENER_NAMES
    }
