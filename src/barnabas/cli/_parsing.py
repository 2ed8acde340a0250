"""Texts that several tools take or print: lists, patterns, settings."""

import re
from collections.abc import Iterable

from barnabas.base.names import did_you_mean
from barnabas.cli._command import UsageError, warn


def matches(pattern: str, name: str) -> bool:
    """Match Kafka's include list: a regular expression for whole names, in which a comma means "or"."""
    expression = re.sub(r"^[\"']+|[\"']+$", "", pattern.strip().replace(",", "|").replace(" ", ""))
    try:
        return re.fullmatch(expression, name) is not None
    except re.error as error:
        raise UsageError(f"{expression} is an invalid regex: {error}") from None


def pairs(items: Iterable[str], *, option: str) -> dict[str, str]:
    """Parse `key=value` arguments."""
    found: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{option} {item}: it must be in the format key=value")
        found[key.strip()] = value.strip()
    return found


def commas(items: Iterable[object]) -> str:
    return ",".join(map(str, items))


def parse_number(text: str, *, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{what}: {text!r} is not a number") from None


def warn_of_unknown(settings: Iterable[str], *, of_topic: bool) -> None:
    """Warn of settings of topics or brokers that look misspelt. The cluster decides, because it may be newer than this tool."""
    from barnabas.base.config.catalog import BROKER_SETTINGS, TOPIC_SETTINGS, broker_setting

    for name in settings:
        is_known = name in TOPIC_SETTINGS if of_topic else broker_setting(name) is not None
        meant = "" if is_known else did_you_mean(name, TOPIC_SETTINGS if of_topic else BROKER_SETTINGS)
        if meant:
            warn(f"{name} is not a known setting of a {'topic' if of_topic else 'broker'}{meant}")
