"""A subscription to metrics of clients (KIP-714, resource type 16): which metrics, how often, of which clients.

Names, defaults and messages are those of Kafka's ClientMetricsConfigs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from barnabas.base.config.definition import Setting, Value, parse_type
from barnabas.base.config.definitions.shorthand import CLIENT_METRICS, INT, LIST, MEDIUM
from barnabas.base.errors import ConfigError, ErrorCode, Refused
from barnabas.base.expressions import BadExpression, compile_expression

METRICS: Final = "metrics"
INTERVAL_MS: Final = "interval.ms"
MATCH: Final = "match"
#: The metric name that stands for all metrics.
EVERY_METRIC: Final = "*"

CLIENT_INSTANCE_ID: Final = "client_instance_id"
CLIENT_ID: Final = "client_id"
CLIENT_SOFTWARE_NAME: Final = "client_software_name"
CLIENT_SOFTWARE_VERSION: Final = "client_software_version"
CLIENT_SOURCE_ADDRESS: Final = "client_source_address"
CLIENT_SOURCE_PORT: Final = "client_source_port"
#: What `match` can select clients by.
SELECTORS: Final = (
    CLIENT_ID,
    CLIENT_INSTANCE_ID,
    CLIENT_SOFTWARE_NAME,
    CLIENT_SOFTWARE_VERSION,
    CLIENT_SOURCE_ADDRESS,
    CLIENT_SOURCE_PORT,
)

DEFAULT_INTERVAL_MS: Final = 5 * 60 * 1000
_INTERVAL_MS_LEAST: Final = 100
_INTERVAL_MS_MOST: Final = 60 * 60 * 1000


class _Interval:
    def check(self, name: str, value: Value) -> None:
        if not isinstance(value, int) or not _INTERVAL_MS_LEAST <= value <= _INTERVAL_MS_MOST:
            raise ConfigError(
                f"Invalid value {value} for {name}, interval must be between {_INTERVAL_MS_LEAST} and "
                f"{_INTERVAL_MS_MOST} (1 hour)"
            )

    def __str__(self) -> str:
        return f"[{_INTERVAL_MS_LEAST},...,{_INTERVAL_MS_MOST}]"


class _Match:
    def check(self, name: str, value: Value) -> None:
        assert isinstance(value, tuple)
        _matchers(value)

    def __str__(self) -> str:
        return f"selector=regular expression; selectors: {', '.join(SELECTORS)}"


# fmt: off
SETTINGS: Final = (
    Setting(METRICS, LIST, (), MEDIUM, None, CLIENT_METRICS,
            "Prefixes of the names of the metrics that clients send; * for all of them, nothing for none."),
    Setting(INTERVAL_MS, INT, DEFAULT_INTERVAL_MS, MEDIUM, _Interval(), CLIENT_METRICS,
            "How often clients send the metrics."),
    Setting(MATCH, LIST, (), MEDIUM, _Match(), CLIENT_METRICS,
            "Which clients send the metrics; without a selector all of them."),
)
# fmt: on

CLIENT_METRICS_SETTINGS: Final[Mapping[str, Setting]] = {setting.name: setting for setting in SETTINGS}


class Matcher(Protocol):
    """A regular expression."""

    def fullmatch(self, text: str) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetricsConfig:
    metrics: tuple[str, ...] = ()
    interval_ms: int = DEFAULT_INTERVAL_MS
    #: By selector. A client must match all of them.
    matchers: Mapping[str, Matcher] = field(default_factory=dict)

    def matches(self, client: Mapping[str, str]) -> bool:
        """Whether the subscription is for a client with these values by selector."""
        return all(
            selector in client and matcher.fullmatch(client[selector]) for selector, matcher in self.matchers.items()
        )


def client_metrics_config(own: Mapping[str, str]) -> ClientMetricsConfig:
    """Return the subscription that has these settings.

    :raises ConfigError: if they are not valid.
    """
    values = client_metrics_values(own)
    metrics, interval_ms, match = values[METRICS], values[INTERVAL_MS], values[MATCH]
    assert isinstance(metrics, tuple) and isinstance(interval_ms, int) and isinstance(match, tuple)
    return ClientMetricsConfig(metrics=metrics, interval_ms=interval_ms, matchers=_matchers(match))


def client_metrics_values(own: Mapping[str, str]) -> dict[str, Value]:
    """Return the value of every setting of a subscription by name.

    :raises ConfigError: if a value is not valid.
    """
    return {
        name: setting.parse(own[name]) if name in own else setting.default
        for name, setting in CLIENT_METRICS_SETTINGS.items()
    }


def validate_client_metrics(own: Mapping[str, str]) -> None:
    """Refuse settings that a subscription cannot have.

    :raises Refused: with Kafka's errors: INVALID_REQUEST or INVALID_CONFIG.
    """
    for name, raw in own.items():
        setting = CLIENT_METRICS_SETTINGS.get(name)
        if setting is None:
            raise Refused(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
        try:
            value = parse_type(name, raw, setting.type)
        except ConfigError as error:
            raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from error
        if setting.validator is None:
            continue
        try:
            setting.validator.check(name, value)
        except ConfigError as error:
            code = ErrorCode.INVALID_REQUEST if name == INTERVAL_MS else ErrorCode.INVALID_CONFIG
            raise Refused(code, str(error)) from error


def _matchers(patterns: tuple[str, ...]) -> dict[str, Matcher]:
    found: dict[str, Matcher] = {}
    for pattern in patterns:
        selector, equals, expression = pattern.partition("=")
        selector, expression = selector.strip(), expression.strip()
        why = ""
        if selector not in SELECTORS or not equals or not expression or "=" in expression:
            why = f"; use SELECTOR=EXPRESSION with one of {', '.join(SELECTORS)}"
        else:
            try:
                found[selector] = compile_expression(expression)
            except BadExpression as error:
                why = f"; {error}"
        if why:
            raise ConfigError(f"Illegal client matching pattern: {pattern}{why}")
    return found
