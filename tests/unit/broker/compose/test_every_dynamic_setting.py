"""Every setting that may change while a broker runs: changed by request, seen to have its effect, and there after a restart.

A row says where the effect is seen. A dynamic setting without a row fails the test.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from barnabas.base.config.catalog import (
    BROKER_SETTINGS,
    DYNAMIC_NAMES,
    DYNAMIC_ONLY_SETTINGS,
    PER_BROKER_NAMES,
    TOPIC_SETTINGS,
    listener_base_name,
)
from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.broker.compose import Broker
from barnabas.broker.features.tiered.feature import TieredPlugin
from barnabas.broker.zookeeper_client import paths
from barnabas.client.admin import configs as config_admin
from barnabas.client.admin import topics as topic_admin
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig, client_config
from barnabas.client.errors import AuthenticationFailed, BrokerRefused
from barnabas.wire.auth.mechanisms.scram import ScramCredential, ScramMechanism
from tests.pki import Authority
from tests.unit.broker.compose.live_broker import LISTENER, alter, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import Ensemble, zookeeper

HOME = "127.0.0.1"
P = TopicPartition("t", 0)
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
LISTENERS = f"{LISTENER}://{HOME}:0,INTERNAL://{HOME}:0,TLS://{HOME}:0"
PROTOCOLS = f"{LISTENER}:PLAINTEXT,INTERNAL:SASL_PLAINTEXT,TLS:SSL"
TLS = "listener.name.tls.ssl."

#: Defaults of topics: the effect is seen at the log of a partition, in the field of the topic setting.
OF_LOGS = {
    "compression.gzip.level": "5",
    "compression.lz4.level": "5",
    "compression.type": "gzip",
    "compression.zstd.level": "5",
    "log.cleaner.delete.retention.ms": "1000001",
    "log.cleaner.max.compaction.lag.ms": "1000002",
    "log.cleaner.min.cleanable.ratio": "0.25",
    "log.cleaner.min.compaction.lag.ms": "1000",
    "log.cleanup.policy": "compact,delete",
    "log.flush.interval.messages": "1000",
    "log.flush.interval.ms": "60000",
    "log.index.interval.bytes": "2048",
    "log.index.size.max.bytes": "1048576",
    "log.retention.bytes": "1000000",
    "log.retention.ms": "86400000",
    "log.local.retention.bytes": "500",
    "log.local.retention.ms": "500",
    "log.message.timestamp.difference.max.ms": "3000002",
    "log.message.timestamp.after.max.ms": "3000000",
    "log.message.timestamp.before.max.ms": "3000001",
    "log.message.timestamp.type": "LogAppendTime",
    "log.preallocate": "true",
    "log.roll.jitter.ms": "1000",
    "log.roll.ms": "3600000",
    "log.segment.bytes": "1048576",
    "log.segment.delete.delay.ms": "1000",
    "message.max.bytes": "500000",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "true",
}
#: Settings that the code reads when it needs them, from the broker's current ones.
READ_WHEN_NEEDED = {
    "barnabas.schema.registry.url": "http://127.0.0.1:1",
    "errors.deadletterqueue.auto.create.topics.enable": "true",
    "errors.deadletterqueue.topic.name.prefix": "dead.",
    "remote.fetch.max.wait.ms": "400",
    "remote.log.manager.copy.max.bytes.per.second": "5000000",
    # A token login between brokers, and the check of another broker's certificate.
    "sasl.login.refresh.window.factor": "0.7",
    "sasl.login.refresh.window.jitter": "0.1",
    "ssl.endpoint.identification.algorithm": "",
}


@dataclass(frozen=True, slots=True)
class Row:
    value: str
    seen: Callable[[Broker], object]
    #: None: the value, parsed.
    expected: object = None


def tls_context(broker: Broker) -> ssl.SSLContext:
    [context] = [each.tls for each in broker.server._listening.values() if each.name == "TLS"]
    assert context is not None
    return context


def of_tier(broker: Broker) -> Any:
    return broker.plugin(TieredPlugin)


ROWS = {
    "advertised.listeners": Row(
        f"{LISTENER}://localhost:0,INTERNAL://{HOME}:0",
        lambda broker: [each.host for each in broker.registrar.registration.endpoints],
        ["localhost", HOME],
    ),
    "background.threads": Row("12", lambda broker: broker._pool._size),
    "barnabas.record.framing.check": Row("true", lambda broker: broker.logs._env.check_framing),
    "barnabas.request.max.elements": Row("20000", lambda broker: broker.pipeline.elements_max),
    "log.cleaner.backoff.ms": Row("20000", lambda broker: broker.cleaner.settings.backoff_ms),
    "log.cleaner.dedupe.buffer.size": Row("64000000", lambda broker: broker.cleaner.settings.dedupe_buffer_size),
    "log.cleaner.io.buffer.load.factor": Row("0.5", lambda broker: broker.cleaner.settings.io_buffer_load_factor),
    "log.cleaner.io.buffer.size": Row("600000", lambda broker: broker.cleaner.settings.io_buffer_size),
    "log.cleaner.io.max.bytes.per.second": Row(
        "1000000", lambda broker: broker.cleaner.settings.io_max_bytes_per_second
    ),
    "log.cleaner.threads": Row("2", lambda broker: broker.cleaner.settings.threads),
    "max.connection.creation.rate": Row("100000", lambda broker: broker.quotas.connections.limits.broker),
    "max.connections": Row("1000", lambda broker: broker.server.limits.max_connections),
    "max.connections.per.ip": Row("500", lambda broker: broker.server.limits.for_ip("10.0.0.1")),
    "max.connections.per.ip.overrides": Row(
        "10.0.0.2:400", lambda broker: broker.server.limits.for_ip("10.0.0.2"), 400
    ),
    "listener.name.tls.max.connections": Row("900", lambda broker: broker.server.limits.listeners["TLS"], 900),
    "listener.name.tls.max.connection.creation.rate": Row(
        "90000", lambda broker: broker.quotas.connections.limits.listeners["TLS"], 90_000
    ),
    "num.recovery.threads.per.data.dir": Row("2", lambda broker: broker.logs.settings.recovery_threads_per_data_dir),
    "num.replica.fetchers": Row("2", lambda broker: broker.replication.fetchers._fetcher_count),
    "producer.id.expiration.ms": Row("1000000", lambda broker: log(broker).producers.producer_id_expiration_ms),
    "transaction.partition.verification.enable": Row(
        "false", lambda broker: log(broker).producers.transaction_verification
    ),
    "remote.log.index.file.cache.total.size.bytes": Row(
        "1000000", lambda broker: of_tier(broker)._copies.indexes_bytes_max
    ),
    "remote.log.manager.fetch.max.bytes.per.second": Row("6000000", lambda broker: of_tier(broker)._quota.limit),
    "leader.replication.throttled.rate": Row("700000", lambda broker: broker.replication.throttles.leader.limit),
    "follower.replication.throttled.rate": Row("600000", lambda broker: broker.replication.throttles.follower.limit),
    "replica.alter.log.dirs.io.max.bytes.per.second": Row(
        "500000", lambda broker: broker.replication.throttles.moves.limit
    ),
    "sasl.mechanism.inter.broker.protocol": Row(
        "SCRAM-SHA-256", lambda broker: broker.security.inter_broker._securities["INTERNAL"].mechanism
    ),
    "ssl.client.auth": Row("requested", lambda broker: tls_context(broker).verify_mode, ssl.CERT_OPTIONAL),
    "ssl.protocol": Row("TLSv1.2", lambda broker: tls_context(broker).maximum_version, ssl.TLSVersion.TLSv1_2),
    "ssl.enabled.protocols": Row("TLSv1.2", lambda broker: tls_context(broker).maximum_version, ssl.TLSVersion.TLSv1_2),
    "ssl.cipher.suites": Row(
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        lambda broker: [each["name"] for each in tls_context(broker).get_ciphers() if each["protocol"] == "TLSv1.2"],
        ["ECDHE-ECDSA-AES256-GCM-SHA384"],
    ),
}
#: Settings that mean something only together, and the test of this module that changes them.
IN_TESTS = {
    "listeners": "test_a_listener_with_a_login_is_added",
    "listener.security.protocol.map": "test_a_listener_with_a_login_is_added",
    "sasl.enabled.mechanisms": "test_a_listener_with_a_login_is_added",
    "sasl.jaas.config": "test_a_listener_with_a_login_is_added",
    **{
        f"ssl.{name}": "test_the_stores_of_a_listener_are_replaced"
        for name in (
            *("keystore.type", "keystore.location", "keystore.password", "key.password", "keystore.key"),
            *("keystore.certificate.chain", "truststore.type", "truststore.location", "truststore.password"),
            "truststore.certificates",
        )
    },
}
#: `ssl.protocol` has lowered the highest version already.
SEEN_BEFORE = ("ssl.enabled.protocols",)
WITHOUT_EFFECT = sorted(name for name in DYNAMIC_NAMES if BROKER_SETTINGS[name].no_effect)


def log(broker: Broker) -> Any:
    found = broker.logs.get(P)
    assert found is not None
    return found


def parsed(name: str, raw: str) -> object:
    plain = listener_base_name(name) or name
    return (BROKER_SETTINGS.get(plain) or DYNAMIC_ONLY_SETTINGS[plain]).parse(raw)


def log_row(name: str, value: str) -> Row:
    [setting] = [each for each in TOPIC_SETTINGS.values() if each.server_default == name]
    field = setting.name.replace(".", "_")
    found = parsed(name, value)
    return Row(
        value, lambda broker: getattr(log(broker).config, field), set(found) if isinstance(found, tuple) else None
    )


def config_row(name: str, value: str) -> Row:
    return Row(value, lambda broker: broker.config.values[name])


def all_rows() -> dict[str, Row]:
    return {
        **{name: log_row(name, value) for name, value in OF_LOGS.items()},
        **{name: config_row(name, value) for name, value in READ_WHEN_NEEDED.items()},
        **ROWS,
    }


def check_effect(broker: Broker, name: str, row: Row) -> None:
    expected = parsed(name, row.value) if row.expected is None else row.expected
    assert row.seen(broker) == expected, name


def test_every_dynamic_setting_has_a_row() -> None:
    families = [OF_LOGS, READ_WHEN_NEEDED, ROWS, IN_TESTS, WITHOUT_EFFECT]
    named = [name for family in families for name in family]
    assert len(named) == len(set(named))
    plain = {listener_base_name(name) or name for name in named}
    assert plain == DYNAMIC_NAMES | DYNAMIC_ONLY_SETTINGS.keys()
    assert all(test in globals() for test in IN_TESTS.values())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.create(tmp_path_factory.mktemp("authority"))
    for name in ("first", "second", "third", "fourth"):
        made.issue(name, subject="/CN=broker")
    return made


def file_settings(tmp_path: Path, authority: Authority) -> dict[str, str]:
    return {
        "listeners": LISTENERS,
        "listener.security.protocol.map": PROTOCOLS,
        "inter.broker.listener.name": "INTERNAL",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.internal.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.internal.plain.sasl.jaas.config": f'{PLAIN} username="b" password="s" user_b="s";',
        "listener.name.internal.scram-sha-256.sasl.jaas.config": f'{SCRAM} username="b" password="s";',
        f"{TLS}keystore.type": "PEM",
        f"{TLS}keystore.location": str(authority.folder / "first.pem"),
        f"{TLS}truststore.type": "PEM",
        f"{TLS}truststore.location": str(authority.certificate),
        "password.encoder.secret": "encoder",
        "remote.log.storage.system.enable": "true",
        "barnabas.remote.storage.url": f"file://{tmp_path}/tier",
    }


def live(ensemble: Ensemble, tmp_path: Path, authority: Authority) -> Any:
    return live_broker(ensemble, tmp_path / "log", file_settings(tmp_path, authority))


async def make_topic(broker: Broker) -> None:
    async with AsyncClient(client_config(f"{HOME}:{broker.ports[LISTENER]}")) as client:
        await topic_admin.create_topics(
            client, [topic_admin.NewTopic(name=P.topic, partitions=1, replication_factor=1)]
        )


async def change(broker: Broker, settings: Mapping[str, str | None]) -> None:
    names = {listener_base_name(name) or name for name in settings}
    is_own = bool(names & PER_BROKER_NAMES)
    assert await alter(broker, settings, "1" if is_own else "") == (ErrorCode.NONE, None), settings


async def test_every_setting_has_its_effect_at_once_and_after_a_restart(tmp_path: Path, authority: Authority) -> None:
    rows = all_rows()
    async with zookeeper() as ensemble:
        async with live(ensemble, tmp_path, authority) as broker:
            await make_topic(broker)
            scram = ScramCredential.of_password(ScramMechanism.SHA_256, "s", salt=b"salt", iterations=4096)
            await broker.settings.write("users", "b", {"SCRAM-SHA-256": scram.encode()})
            for name, row in rows.items():
                before = row.seen(broker)
                await change(broker, {name: row.value})
                check_effect(broker, name, row)
                assert row.seen(broker) != before or name in SEEN_BEFORE, f"{name} had its value before"
            for name in WITHOUT_EFFECT:
                setting = BROKER_SETTINGS[name]
                await change(broker, {name: "x" if setting.default is None else setting.format(setting.default)})
            stored = (broker.dynamic.own, broker.dynamic.cluster_default)
        async with live(ensemble, tmp_path, authority) as broker:
            assert (broker.dynamic.own, broker.dynamic.cluster_default) == stored
            for name, row in rows.items():
                check_effect(broker, name, row)


async def log_in(port: int, password: str) -> None:
    security = {
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN} username="alice" password="{password}";',
    }
    config = ClientConfig(bootstrap=((HOME, port),), security_protocol="SASL_PLAINTEXT", security=security)
    async with AsyncClient(config) as client:
        await client.brokers()


async def test_a_listener_with_a_login_is_added(ensemble: Ensemble, tmp_path: Path, authority: Authority) -> None:
    async with live(ensemble, tmp_path, authority) as broker:
        await change(broker, {"sasl.enabled.mechanisms": "PLAIN"})
        await change(
            broker,
            {
                "listeners": f"{LISTENERS},LOGIN://{HOME}:0",
                "listener.security.protocol.map": f"{PROTOCOLS},LOGIN:SASL_PLAINTEXT",
                "listener.name.login.plain.sasl.jaas.config": f'{PLAIN} user_alice="wonder";',
            },
        )
        await log_in(broker.ports["LOGIN"], "wonder")
        stored = broker.dynamic.own
    async with live(ensemble, tmp_path, authority) as broker:
        assert broker.dynamic.own == stored
        await log_in(broker.ports["LOGIN"], "wonder")
        with pytest.raises(AuthenticationFailed, match="Invalid username or password"):
            await log_in(broker.ports["LOGIN"], "another")


async def certificate(port: int) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(HOME, port, ssl=context)
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(shown, bytes)
        return shown
    finally:
        writer.close()


async def test_the_stores_of_a_listener_are_replaced(tmp_path: Path, authority: Authority) -> None:
    """From a PEM file to another, to a PKCS12 store with its passwords, to a key in the setting itself."""

    def issued(name: str) -> bytes:
        return ssl.PEM_cert_to_DER_cert((authority.folder / f"{name}.crt").read_text())

    trust_store = authority.folder / "first.p12"
    authority.pkcs12("first", "trust", with_authority=True)
    steps: list[tuple[dict[str, str | None], str]] = [
        ({"keystore.location": str(authority.folder / "second.pem")}, "second"),
        (
            {
                "keystore.type": "PKCS12",
                "keystore.location": str(authority.pkcs12("third", "secret")),
                "keystore.password": "secret",
                "key.password": "secret",
            },
            "third",
        ),
        (
            {"truststore.type": "PKCS12", "truststore.location": str(trust_store), "truststore.password": "trust"},
            "third",
        ),
    ]
    inline: dict[str, str | None] = {
        "listeners": f"{LISTENERS},INLINE://{HOME}:0",
        "listener.security.protocol.map": f"{PROTOCOLS},INLINE:SSL",
        "listener.name.inline.ssl.keystore.type": "PEM",
        "listener.name.inline.ssl.keystore.key": (authority.folder / "fourth.key").read_text(),
        "listener.name.inline.ssl.keystore.certificate.chain": (authority.folder / "fourth.crt").read_text(),
        "listener.name.inline.ssl.truststore.type": "PEM",
        "listener.name.inline.ssl.truststore.certificates": authority.certificate.read_text(),
    }

    async with zookeeper() as ensemble:
        async with live(ensemble, tmp_path, authority) as broker:
            assert await certificate(broker.ports["TLS"]) == issued("first")
            for settings, shown in steps:
                await change(broker, {f"{TLS}{name}": value for name, value in settings.items()})
                assert await certificate(broker.ports["TLS"]) == issued(shown)
            await change(broker, inline)
            assert await certificate(broker.ports["INLINE"]) == issued("fourth")
            stored = broker.dynamic.own
        async with live(ensemble, tmp_path, authority) as broker:
            assert broker.dynamic.own == stored
            assert await certificate(broker.ports["TLS"]) == issued("third")
            assert await certificate(broker.ports["INLINE"]) == issued("fourth")


#: Settings that only topics have. All others have the value of the row of their broker setting.
OF_TOPICS = {
    "leader.replication.throttled.replicas": "0:1",
    "follower.replication.throttled.replicas": "0:1",
    "errors.deadletterqueue.group.enable": "true",
    "remote.storage.enable": "true",
    "remote.log.copy.disable": "true",
    "remote.log.delete.on.disable": "true",
    "barnabas.key.schema.validation": "true",
    "barnabas.value.schema.validation": "true",
    "barnabas.key.subject.name.strategy": "RecordNameStrategy",
    "barnabas.value.subject.name.strategy": "RecordNameStrategy",
}
#: Refused by request: links set them.
REFUSED = {"barnabas.link.name": "a-link"}
#: A topic with history in the tier is not compacted; if nothing more is copied there, all of it stays on the disk.
IN_TIER = {"cleanup.policy": "delete", "local.retention.ms": "86400000", "local.retention.bytes": "1000000"}


def topic_value(name: str) -> str:
    setting = TOPIC_SETTINGS[name]
    if name in OF_TOPICS:
        return OF_TOPICS[name]
    assert setting.server_default is not None
    if setting.no_effect:
        return setting.format(setting.default) or "x"
    return IN_TIER.get(name) or OF_LOGS[setting.server_default]


async def test_every_setting_of_a_topic_reaches_its_log_at_once_and_after_a_restart(
    tmp_path: Path, authority: Authority
) -> None:
    def check_log(broker: Broker, name: str, value: str) -> None:
        field, found = name.replace(".", "_"), TOPIC_SETTINGS[name].parse(value)
        seen = getattr(log(broker).config, field)
        assert seen == (set(found) if isinstance(seen, frozenset) and isinstance(found, tuple) else found), name

    async def set_topic(broker: Broker, name: str, value: str) -> None:
        async with AsyncClient(client_config(f"{HOME}:{broker.ports[LISTENER]}")) as client:
            await config_admin.alter_configs(
                client, ConfigResourceType.TOPIC, P.topic, {name: (AlterOperation.SET, value)}
            )

    values = {name: topic_value(name) for name in TOPIC_SETTINGS if name not in REFUSED}
    seen = {name: value for name, value in values.items() if not TOPIC_SETTINGS[name].no_effect}
    async with zookeeper() as ensemble:
        async with live(ensemble, tmp_path, authority) as broker:
            await make_topic(broker)
            await change(broker, {"barnabas.schema.registry.url": "http://127.0.0.1:1"})
            for name, value in values.items():
                await set_topic(broker, name, value)
                if name in seen:
                    check_log(broker, name, value)
            for name, value in REFUSED.items():
                with pytest.raises(BrokerRefused, match="INVALID_CONFIG"):
                    await set_topic(broker, name, value)
        async with live(ensemble, tmp_path, authority) as broker:
            assert await broker.settings.store.read(paths.TOPICS, P.topic) == values
            for name, value in seen.items():
                check_log(broker, name, value)
