"""The properties of a link: how to reach the source, and how to mirror it. Validated once. Pure but for name lookups."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from barnabas.base.config.catalog import TOPIC_SETTINGS
from barnabas.base.errors import ConfigError
from barnabas.base.expressions import BadExpression, compile_expression
from barnabas.base.names import did_you_mean
from barnabas.broker.zookeeper_client.znodes_link import LinkSpec
from barnabas.client import names
from barnabas.client.config import ClientConfig, client_config, whole_number
from barnabas.client.oauth_login import TOKEN_ENDPOINT
from barnabas.client.web import scheme_of

#: Settings of the link itself; all others are settings of the client that reaches the source.
THROTTLE: Final = "link.throttle.bytes.per.second"
REFRESH: Final = "link.refresh.interval.ms"
REPLICATION_FACTOR: Final = "link.replication.factor"
TOPIC_CONFIGS: Final = "link.topic.configs"
PARTITIONS_MAX: Final = "link.partitions.max"
NAMES: Final = (THROTTLE, REFRESH, REPLICATION_FACTOR, TOPIC_CONFIGS, PARTITIONS_MAX)

#: Settings that a mirror copies from its source, unless `link.topic.configs` names others. Settings that name brokers
#: (throttles, placement) or features of the source's cluster (tiering) are not copied.
DEFAULT_TOPIC_CONFIGS: Final = (
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "index.interval.bytes",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
)

#: A batch larger than the requested size is sent whole. But a source must not use up a broker's memory.
_RESPONSE_BYTES_MAX: Final = 128 * 1024 * 1024
#: Enough for the metadata of about 250,000 partitions.
_RESPONSE_ELEMENTS_MAX: Final = 2_000_000
EARLIEST: Final = "earliest"
LATEST: Final = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    client: ClientConfig = field(repr=False)
    #: Limit of each broker; None: no limit.
    throttle_bytes_per_second: int | None = None
    #: How often to ask the source for topics, settings, groups and ACLs.
    refresh_interval_ms: int = 5_000
    #: -1 stands for `default.replication.factor`.
    replication_factor: int = -1
    topic_configs: tuple[str, ...] = DEFAULT_TOPIC_CONFIGS
    #: Most partitions of all mirrors together: the source decides how many there are.
    partitions_max: int = 20_000

    @staticmethod
    def of(configs: Mapping[str, str], *, name: str) -> "LinkSettings":
        """:raises ConfigError: for a setting that is wrong or unknown."""
        own = {key: value for key, value in configs.items() if key.startswith("link.")}
        others = {key: value for key, value in configs.items() if key not in own}
        for key in own:
            if key not in NAMES:
                raise ConfigError(f"{key} is not a setting of a link{did_you_mean(key, NAMES)}")
        if any(key.startswith("config.providers") for key in others):
            raise ConfigError(
                "config.providers is not allowed: it would read files and variables of the brokers; the tool resolves them"
            )
        names.require_known(others, names.CONNECTION, what="a link")
        if TOKEN_ENDPOINT in others and scheme_of(others[TOKEN_ENDPOINT]) not in ("http", "https"):
            # Otherwise a broker would send the content of a file that it can read to a server that the link names.
            raise ConfigError(f"{TOKEN_ENDPOINT} is not an https URL: a link takes no token from a file of the brokers")
        client = replace(
            client_config(None, others, client_id=f"barnabas-link-{name}"),
            response_bytes_max=_RESPONSE_BYTES_MAX,
            response_elements_max=_RESPONSE_ELEMENTS_MAX,
        )
        if not client.bootstrap:
            raise ConfigError("a link needs bootstrap.servers: the source's brokers")
        throttle = whole_number(own, THROTTLE, None, at_least=1)
        refresh_ms = whole_number(own, REFRESH, 5_000, at_least=100)
        factor = whole_number(own, REPLICATION_FACTOR, -1, at_least=-1)
        listed = own.get(TOPIC_CONFIGS)
        return LinkSettings(
            client=client,
            throttle_bytes_per_second=throttle,
            refresh_interval_ms=refresh_ms,
            replication_factor=factor,
            topic_configs=DEFAULT_TOPIC_CONFIGS if listed is None else _topic_configs(listed),
            partitions_max=whole_number(own, PARTITIONS_MAX, 20_000, at_least=1),
        )


def _topic_configs(text: str) -> tuple[str, ...]:
    listed = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in listed:
        if name not in TOPIC_SETTINGS:
            raise ConfigError(
                f"{TOPIC_CONFIGS}: {name} is not a setting of a topic{did_you_mean(name, TOPIC_SETTINGS)}"
            )
        if name.startswith("barnabas.link."):
            raise ConfigError(f"{TOPIC_CONFIGS}: only links may set {name}")
    return listed


def check_pattern(expression: str, *, what: str) -> None:
    try:
        compile_expression(expression)
    except BadExpression as error:
        raise ConfigError(f"{what} {expression!r} is not a regular expression: {error}") from None


def matching(expression: str, candidates: "list[str]") -> list[str]:
    """Return the names that match completely, in order. RE2 takes linear time for every expression."""
    pattern = compile_expression(expression)
    return [name for name in candidates if pattern.fullmatch(name)]


def check_start(text: str) -> None:
    """Check a start: earliest, latest, or milliseconds since 1970."""
    if text not in (EARLIEST, LATEST) and not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ConfigError(f"start {text!r} is not valid: use earliest, latest or a time in milliseconds")


def checked(name: str, spec: LinkSpec, configs: Mapping[str, str]) -> LinkSettings:
    """Return the validated settings of a link, new or read from ZooKeeper. :raises ConfigError:"""
    settings = LinkSettings.of(configs, name=name)
    check_pattern(spec.topics, what="the pattern of topics")
    if spec.groups is not None:
        check_pattern(spec.groups, what="the pattern of groups")
    check_start(spec.start)
    return settings
