"""Apache Kafka 3.9.1 and our brokers accept and refuse the same values of dynamic settings.

The settings come from our own table, the values from their types. Each request only validates and changes nothing.
"""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from barnabas.base.config.catalog import (
    BROKER_SETTINGS,
    CLUSTER_LISTENER_NAMES,
    DYNAMIC_NAMES,
    DYNAMIC_ONLY_SETTINGS,
    TOPIC_SETTINGS,
)
from barnabas.base.config.definition import Setting, ValueType
from barnabas.base.errors import ErrorCode
from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.client.admin import topics as topic_admin
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.interop.kinds import APACHE, OURS, MixedCluster, free_port

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("java")]
KINDS = {1: APACHE, 2: OURS}
TOPIC = "t"
NUMBERS = ("-2", "-1", "0", "1", "2", "3", "7", "17", "1000", "1048576", "2147483647", "2147483648", "x", "")
VALUES = {
    ValueType.INT: NUMBERS,
    ValueType.SHORT: NUMBERS,
    ValueType.LONG: (*NUMBERS, "9223372036854775807", "9223372036854775808"),
    ValueType.DOUBLE: ("-1", "0", "0.25", "1", "1.5", "x", ""),
    ValueType.BOOLEAN: ("true", "FALSE", "1", ""),
    ValueType.STRING: ("", "x", "gzip", "LogAppendTime", "0:1", "localhost:1", "localhost:x", "TLSv1.2", "required"),
    ValueType.LIST: ("", "compact", "compact,delete", "x", "0:1", "*", "TLSv1.2", "PLAIN"),
    ValueType.PASSWORD: ("secret",),
    ValueType.CLASS: ("",),
}
_KAFKA_4 = "a setting of Kafka 4: 3.9 takes any value for a name that it does not know"
#: Settings for which our brokers answer differently, with the reason.
DIFFERENT = {
    "errors.deadletterqueue.auto.create.topics.enable": _KAFKA_4,
    "errors.deadletterqueue.group.enable": _KAFKA_4,
    "share.coordinator.cached.buffer.max.bytes": _KAFKA_4,
    "metric.reporters": "Kafka loads the Java classes; here the setting has no effect",
    "principal.builder.class": "Kafka loads the Java class; here the setting has no effect",
    "ssl.engine.factory.class": "Kafka loads the Java class; here the setting has no effect",
    "remote.log.copy.disable": "as in KRaft mode, where copying to the tier can be switched off",
    "remote.log.delete.on.disable": "as in KRaft mode, where tiering can be switched off",
}


class Case(NamedTuple):
    kind: ConfigResourceType
    #: `own`: the broker that gets the request.
    scope: str
    name: str
    value: str


class Difference(NamedTuple):
    kind: ConfigResourceType
    scope: str
    name: str
    value: str
    apache: ErrorCode
    ours: ErrorCode


@pytest.fixture(scope="module")
def mixed() -> Iterator[MixedCluster]:
    with MixedCluster(kinds=dict(KINDS), config={"password.encoder.secret": "encoder"}) as cluster:
        yield cluster


def cases_of(setting: Setting, kind: ConfigResourceType, scope: str, name: str = "") -> Iterator[Case]:
    for value in VALUES[setting.type]:
        yield Case(kind, scope, name or setting.name, value)


def cases() -> Iterator[Case]:
    brokers = {name: BROKER_SETTINGS[name] for name in sorted(DYNAMIC_NAMES) if not name.startswith("barnabas.")}
    for setting in (*brokers.values(), *DYNAMIC_ONLY_SETTINGS.values()):
        for scope in ("own", ""):
            yield from cases_of(setting, ConfigResourceType.BROKER, scope)
    for name in sorted(CLUSTER_LISTENER_NAMES):
        for scope in ("own", ""):
            for listener in ("plaintext", "absent"):
                yield from cases_of(
                    BROKER_SETTINGS[name], ConfigResourceType.BROKER, scope, f"listener.name.{listener}.{name}"
                )
    for name, setting in TOPIC_SETTINGS.items():
        if not name.startswith("barnabas."):
            yield from cases_of(setting, ConfigResourceType.TOPIC, TOPIC)


async def answer(client: AsyncClient, broker: int, case: Case) -> ErrorCode:
    kind, scope, name, value = case
    entry = AlterableConfig(name=name, config_operation=AlterOperation.SET, value=value)
    resource = AlterConfigsResource(
        resource_type=kind, resource_name=str(broker) if scope == "own" else scope, configs=[entry]
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
    [result] = (await client.ask(broker, request, IncrementalAlterConfigsResponse)).responses
    return ErrorCode(result.error_code)


def test_the_same_values_are_accepted_and_refused(mixed: MixedCluster) -> None:
    async def compare() -> list[Difference]:
        async with AsyncClient(client_config(mixed.bootstrap)) as client:
            if TOPIC not in await client.all_topics():
                await topic_admin.create_topics(client, [topic_admin.NewTopic(name=TOPIC, assignment={0: [1, 2]})])
            found: list[Difference] = []
            for case in cases():
                apache, ours = [await answer(client, broker, case) for broker in KINDS]
                if apache is not ours:
                    found.append(Difference(*case, apache=apache, ours=ours))
            return found

    found = asyncio.run(compare())
    assert [each for each in found if each.name not in DIFFERENT] == []
    assert {each.name for each in found} == DIFFERENT.keys()


async def answers(client: AsyncClient, settings: dict[str, str]) -> list[ErrorCode]:
    entries = [
        AlterableConfig(name=name, config_operation=AlterOperation.SET, value=value) for name, value in settings.items()
    ]
    codes = []
    for broker in KINDS:
        resource = AlterConfigsResource(
            resource_type=ConfigResourceType.BROKER, resource_name=str(broker), configs=entries
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
        [result] = (await client.ask(broker, request, IncrementalAlterConfigsResponse)).responses
        codes.append(ErrorCode(result.error_code))
    return codes


def test_the_same_listeners_are_accepted_and_refused(mixed: MixedCluster) -> None:
    protocols = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTRA:PLAINTEXT,LOGIN:SASL_PLAINTEXT"}

    async def compare() -> None:
        async with AsyncClient(client_config(mixed.bootstrap)) as client:
            await client.brokers()
            for settings, accepted in (
                ({"listeners": f"PLAINTEXT://127.0.0.1:0,EXTRA://127.0.0.1:{free_port()}"} | protocols, True),
                (protocols, True),
                ({"listeners": "EXTRA://127.0.0.1:1"} | protocols, False),
                ({"listeners": "PLAINTEXT://127.0.0.1:1,EXTRA://127.0.0.1:1"} | protocols, False),
                ({"listeners": "PLAINTEXT://127.0.0.1:1,EXTRA://127.0.0.1:2"}, False),
                ({"listener.security.protocol.map": "PLAINTEXT:SSL"}, False),
                ({"advertised.listeners": "PLAINTEXT://elsewhere:1"}, True),
                ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, False),
                ({"advertised.listeners": "EXTRA://elsewhere:1"} | protocols, False),
                ({"advertised.listeners": "PLAINTEXT://elsewhere"}, False),
            ):
                expected = ErrorCode.NONE if accepted else ErrorCode.INVALID_REQUEST
                assert await answers(client, settings) == [expected] * 2, settings

    asyncio.run(compare())
