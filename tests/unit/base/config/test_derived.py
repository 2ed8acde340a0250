"""The settings of a part of the broker, taken from the broker's by the names in its fields."""

import importlib
import pkgutil
from dataclasses import dataclass, fields, is_dataclass
from typing import Final, get_type_hints

import pytest

import barnabas.broker
from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.catalog import BROKER_SETTINGS
from barnabas.base.config.derived import Derived, derive, setting

MINIMAL: Final = {"zookeeper.connect": "localhost:2181"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    broker_id: int
    size: int = setting("group.max.size")
    retention_ms: int = setting("offsets.retention.minutes", lambda minutes: minutes * 60_000)


def parts_of_the_broker() -> list[type]:
    """All dataclasses that declare a field by `setting`."""
    modules = [
        importlib.import_module(each.name)
        for each in pkgutil.walk_packages(barnabas.broker.__path__, "barnabas.broker.")
    ]
    classes = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    return sorted(
        (each for each in classes if is_dataclass(each) and any("setting" in it.metadata for it in fields(each))),
        key=lambda each: each.__name__,
    )


def test_value_comes_from_the_configuration_and_is_converted() -> None:
    config = BrokerConfig.parse({**MINIMAL, "group.max.size": "7", "offsets.retention.minutes": "2"})
    assert derive(Example, config, broker_id=4) == Example(broker_id=4, size=7, retention_ms=120_000)


def test_default_of_a_field_is_the_default_of_its_setting() -> None:
    assert derive(Example, BrokerConfig.parse(MINIMAL), broker_id=1) == Example(broker_id=1)
    assert Example(broker_id=1).retention_ms == 10_080 * 60_000


def test_unknown_setting_is_refused_where_it_is_declared() -> None:
    with pytest.raises(KeyError, match=r"group\.max\.sise"):
        setting("group.max.sise")


def test_derived_settings_follow_the_configuration_and_are_converted_once() -> None:
    @dataclass(frozen=True)
    class Size:
        size: int = setting("group.max.size")

    configs = [BrokerConfig.parse(MINIMAL), BrokerConfig.parse({**MINIMAL, "group.max.size": "9"})]
    current = Derived(lambda: configs[0], Size)
    first = current()
    assert current() is first
    del configs[0]
    assert current().size == 9


def test_fields_have_the_types_of_their_settings() -> None:
    """`setting` returns Any: mypy does not compare the two."""
    found = parts_of_the_broker()
    assert {"CleanerSettings", "FetcherSettings", "GroupSettings"} <= {each.__name__ for each in found}
    for part in found:
        hints = get_type_hints(part)
        for field in fields(part):
            if "setting" in field.metadata:
                kind = hints[field.name]
                allowed = (tuple,) if getattr(kind, "__origin__", None) is tuple else (kind,)
                assert isinstance(field.default, allowed), (part, field.name, kind)
                assert field.metadata["setting"].name in BROKER_SETTINGS
