"""A setting with an effect has code that reads it; a setting without such code says why it has no effect."""

import ast
import dataclasses
import inspect
from functools import cache
from typing import Final

from barnabas.base.config.catalog import (
    BROKER_SETTINGS,
    CLIENT_QUOTA_SETTINGS,
    DYNAMIC_ONLY_SETTINGS,
    IP_QUOTA_SETTINGS,
    TOPIC_SETTINGS,
    UNIT_SYNONYMS,
)
from barnabas.base.config.group_config import GROUP_SETTINGS
from barnabas.base.config.log_config import LogConfig
from barnabas.base.config.settings import BrokerSettings
from tests.unit.base.config.setting_readers import Readers, readers, sources

#: Settings that are folded into another one when the configuration is parsed. Reading that one counts.
FOLDED: Final = {
    "log.dir": "log.dirs",
    "node.id": "broker.id",
    "security.inter.broker.protocol": "inter.broker.listener.name",
    "delegation.token.master.key": "delegation.token.secret.key",
    "message.timestamp.difference.max.ms": "message.timestamp.before.max.ms",
}
#: Settings that only bound the other setting, of a broker and of a group.
BOUNDS = {
    ".".join(("group", kind, end, *what)): ".".join(("group", kind, *what))
    for end in ("min", "max")
    for _, kind, *what in (each.server_default.split(".") for each in GROUP_SETTINGS.values() if each.server_default)
}
BOUNDS["group.streams.max.standby.replicas"] = "group.streams.num.standby.replicas"
#: Attributes computed from several settings, for the topics' defaults and the checks at the start.
RESOLVED_FOR_TOPICS: Final = {
    "log_roll_ms",
    "log_roll_jitter_ms",
    "log_flush_interval_ms",
    "log_retention_ms",
    "security_inter_broker_protocol",
}


@cache
def of_the_source() -> Readers:
    return readers(sources())


def read_in(code: str, *more: str) -> Readers:
    modules = [("server/example.py", code), *((f"server/more{at}.py", text) for at, text in enumerate(more))]
    return readers((name, ast.parse(text)) for name, text in modules)


def topic_settings_read(found: Readers) -> set[str]:
    """Return whether a field, a property or a derived field of `LogConfig`, or a field that it is folded into is read."""
    fields = set(found.attributes)
    for name, value in vars(LogConfig).items():
        if isinstance(value, property) and name in found.loaded:
            assert value.fget is not None
            fields.update(inspect.getclosurevars(value.fget).unbound)
    if {each.name for each in dataclasses.fields(LogConfig) if not each.init} <= found.loaded:
        fields.update(inspect.getclosurevars(LogConfig.__post_init__).unbound)
    direct = {name for name in TOPIC_SETTINGS if name.replace(".", "_") in fields}
    return direct | {name for name, into in FOLDED.items() if into in direct}


def broker_settings_read(found: Readers) -> set[str]:
    settings = {**BROKER_SETTINGS, **DYNAMIC_ONLY_SETTINGS}
    direct = {name for name, each in settings.items() if each.attribute in found.attributes or name in found.names}
    for topic_setting in topic_settings_read(found):
        inherited = TOPIC_SETTINGS[topic_setting].server_default
        direct.update({inherited} if inherited is not None else ())
        direct.update(synonym.name for synonym in UNIT_SYNONYMS.get(topic_setting, ()))
    direct.update(GROUP_SETTINGS[name].server_default or "" for name in group_settings_read(found))
    return direct | {name for name, into in {**FOLDED, **BOUNDS}.items() if into in direct}


def group_settings_read(found: Readers) -> set[str]:
    return {name for name, each in GROUP_SETTINGS.items() if each.attribute in found.attributes}


def test_every_broker_setting_that_claims_an_effect_has_a_reader() -> None:
    claims = {name for name, each in {**BROKER_SETTINGS, **DYNAMIC_ONLY_SETTINGS}.items() if each.is_effective}
    assert sorted(claims - broker_settings_read(of_the_source())) == []


def test_every_topic_setting_that_claims_an_effect_has_a_reader() -> None:
    claims = {name for name, each in TOPIC_SETTINGS.items() if each.is_effective}
    assert sorted(claims - topic_settings_read(of_the_source())) == []


def test_every_group_setting_that_claims_an_effect_has_a_reader() -> None:
    claims = {name for name, each in GROUP_SETTINGS.items() if each.is_effective}
    assert claims == group_settings_read(of_the_source())


def test_no_setting_with_a_reader_claims_to_have_no_effect() -> None:
    """Except for settings that are refused where they would have an effect."""
    refused = {"sasl.kerberos.service.name"}
    idle = {name for name, each in BROKER_SETTINGS.items() if not each.is_effective}
    assert sorted((idle & broker_settings_read(of_the_source())) - refused) == []


def test_every_quota_is_read_by_its_name() -> None:
    assert sorted({*CLIENT_QUOTA_SETTINGS, *IP_QUOTA_SETTINGS} - of_the_source().literals) == []


def test_every_typed_attribute_is_read() -> None:
    attributes = set(BrokerSettings.__annotations__) - RESOLVED_FOR_TOPICS
    assert sorted(attributes - of_the_source().attributes) == []


# -- the search itself: code that counts as a reader, and code that does not ------------------------------------------


def test_attribute_of_a_configuration_is_a_reader() -> None:
    assert "fetch_max_bytes" in read_in("limit = self.config.fetch_max_bytes").attributes
    assert "fetch_max_bytes" in read_in("limit = self._config().fetch_max_bytes").attributes


def test_attribute_of_something_else_is_not_a_reader() -> None:
    assert "fetch_max_bytes" not in read_in("limit = request.fetch_max_bytes").attributes


def test_full_name_in_a_call_or_as_an_index_is_a_reader_and_in_a_list_it_is_not() -> None:
    assert "ssl.protocol" in read_in('get("ssl.protocol")').names
    assert "ssl.protocol" in read_in('config.values["ssl.protocol"]').names
    assert "ssl.protocol" not in read_in('PASSED_ON = ("ssl.protocol", "ssl.client.auth")').names


def test_copy_into_a_field_counts_only_if_the_field_is_read() -> None:
    parts = "class Parts:\n    size: int\n    other: int\n\n    @classmethod\n    def of(cls, config):\n"
    copied = parts + "        return cls(size=config.group_max_size, other=config.broker_id)\n"
    assert read_in(copied, "use(parts.size)").attributes == {"group_max_size"}
    positional = (
        "class Parts:\n    size: int\n    other: int\n\nmade = Parts(config.group_max_size, config.broker_id)\n"
    )
    assert read_in(positional, "use(parts.other)").attributes == {"broker_id"}


def test_field_with_the_name_of_a_setting_counts_only_if_the_field_is_read() -> None:
    parts = 'class Parts:\n    size: int = setting("group.max.size")\n    pace: int = setting("group.pace", double)\n'
    assert read_in(parts, "use(parts.size)").names == {"group.max.size"}
    assert read_in(parts, "use(parts.pace)").names == {"group.pace"}


def test_copy_into_a_field_of_the_same_name_is_not_its_reader() -> None:
    code = "class Parts:\n    broker_id: int\n\nmade = Parts(broker_id=config.broker_id)\n"
    assert read_in(code).attributes == set()
    assert read_in(code, "use(self._parts.broker_id)").attributes == {"broker_id"}
