"""Check names that a test may misspell when they are given, and offer the nearest one: with a fault that never fires, a test
could pass by mistake.
"""

from collections.abc import Iterable, Mapping

from barnabas.base.config.catalog import BROKER_SETTINGS, DYNAMIC_ONLY_SETTINGS, TOPIC_SETTINGS, broker_setting
from barnabas.base.config.properties import PROVIDERS
from barnabas.base.config.usage import HANDED_ON
from barnabas.base.errors import ErrorCode
from barnabas.base.names import did_you_mean
from barnabas.cli.local_settings import SettingValue
from barnabas.wire.versions import API, SERVABLE

ANY_API = "*"
_APIS = frozenset(API[key].name for key in SERVABLE)
_ERRORS = frozenset(code.name for code in ErrorCode if code is not ErrorCode.NONE)


def checked_api(name: str) -> str:
    if name != ANY_API and name not in _APIS:
        raise ValueError(f"there is no API {name!r}{_meant(name, _APIS, 'names are as in Kafka: Produce, Fetch, …')}")
    return name


def checked_error(error: "str | ErrorCode") -> str:
    name = error.name if isinstance(error, ErrorCode) else error
    if name == ErrorCode.NONE.name:
        raise ValueError("error='NONE' is success, and no fault")
    if name not in _ERRORS:
        raise ValueError(
            f"there is no error {name!r}{_meant(name, _ERRORS, 'names are as in Kafka: NOT_ENOUGH_REPLICAS, …')}"
        )
    return name


def check_broker_settings(settings: Iterable[str]) -> None:
    for name in settings:
        known = broker_setting(name) is not None or name in DYNAMIC_ONLY_SETTINGS
        if not known and name != PROVIDERS and not name.startswith((f"{PROVIDERS}.", *HANDED_ON)):
            raise ValueError(
                f"there is no setting {name!r} of a broker{_meant(name, BROKER_SETTINGS, 'see docs/configuration.md')}"
            )


def check_topic_settings(settings: Mapping[str, SettingValue]) -> None:
    for name in settings:
        if name not in TOPIC_SETTINGS:
            raise ValueError(
                f"there is no setting {name!r} of a topic{_meant(name, TOPIC_SETTINGS, 'see docs/configuration.md')}"
            )


def no_such_topic(name: str, topics: Iterable[str]) -> ValueError:
    known = sorted(topics)
    there_are = f"there are: {', '.join(known)}" if known else "there is none"
    return ValueError(f"there is no topic {name!r}{_meant(name, known, there_are)}")


def _meant(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a suggestion: the nearest known name, in any case; otherwise a hint."""
    known = list(known)
    same = next((each for each in known if each.replace("_", "").lower() == name.replace("_", "").lower()), None)
    return f"; did you mean {same}?" if same else did_you_mean(name, known) or f"; {otherwise}"
