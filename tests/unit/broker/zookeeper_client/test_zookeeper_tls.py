"""The `zookeeper.ssl.*` settings, against a server that speaks TLS in front of the embedded ZooKeeper."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.errors import ConfigError
from barnabas.broker.server.settings import session_config
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.session_config import IN_FLIGHT_MAX
from tests.pki import Authority
from tests.unit.broker.zookeeper_client.zookeeper_fixture import Ensemble, run, zookeeper


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.create(tmp_path_factory.mktemp("pki"))
    made.issue("server", subject="/CN=zookeeper")
    made.issue("broker", subject="/CN=broker")
    return made


class TlsFront:
    """Takes TLS off and passes bytes on. It remembers what each client agreed to and showed."""

    def __init__(self, ensemble: Ensemble, authority: Authority) -> None:
        self._ensemble = ensemble
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(authority.folder / "server.pem")
        self.context.load_verify_locations(authority.certificate)
        self.context.verify_mode = ssl.CERT_OPTIONAL
        self.seen: list[tuple[str | None, str | None, str]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        certificate: dict[str, Any] | None = writer.get_extra_info("peercert")
        names = {key: value for part in (certificate or {}).get("subject", ()) for key, value in part}
        spoken: ssl.SSLObject = writer.get_extra_info("ssl_object")
        cipher = spoken.cipher()
        assert cipher is not None
        self.seen.append((names.get("commonName"), spoken.version(), cipher[0]))
        host, _, port = self._ensemble.server.connect_string.partition(":")
        from_server, to_server = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_pipe(reader, to_server), _pipe(from_server, writer))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # the other side ended the connection: so does this one
    finally:
        writer.close()


@asynccontextmanager
async def tls_front(authority: Authority) -> AsyncIterator[tuple[TlsFront, int]]:
    async with zookeeper() as ensemble:
        front = TlsFront(ensemble, authority)
        server = await asyncio.start_server(front.serve, "127.0.0.1", 0, ssl=front.context)
        try:
            yield front, server.sockets[0].getsockname()[1]
        finally:
            server.close()


def broker_config(authority: Authority, port: int, more: dict[str, str]) -> BrokerConfig:
    return BrokerConfig.parse(
        {
            "zookeeper.connect": f"127.0.0.1:{port}",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": str(authority.certificate),
            **more,
        }
    )


async def speak(config: BrokerConfig) -> None:
    session = ZooKeeperSession(session_config(config))
    await session.start()
    try:
        await session.create("/made-through-tls")
    finally:
        await session.stop()


async def test_broker_shows_the_certificate_of_its_key_store(authority: Authority) -> None:
    async with tls_front(authority) as (front, port):
        pem = {"zookeeper.ssl.keystore.location": str(authority.folder / "broker.pem")}
        await speak(broker_config(authority, port, pem))
        assert [name for name, _, _ in front.seen] == ["broker"]


async def test_stores_may_be_pkcs12_with_a_password(authority: Authority) -> None:
    stores = {
        "zookeeper.ssl.keystore.location": str(authority.pkcs12("broker", "key-secret")),
        "zookeeper.ssl.keystore.password": "key-secret",
        "zookeeper.ssl.truststore.location": str(authority.pkcs12("server", "trust-secret", with_authority=True)),
        "zookeeper.ssl.truststore.password": "trust-secret",
        "zookeeper.ssl.truststore.type": "PKCS12",
    }

    async with tls_front(authority) as (front, port):
        await speak(broker_config(authority, port, stores))
        assert [name for name, _, _ in front.seen] == ["broker"]


@pytest.mark.parametrize(
    ("settings", "version"),
    [
        ({}, "TLSv1.2"),
        ({"zookeeper.ssl.protocol": "TLSv1.3"}, "TLSv1.3"),
        ({"zookeeper.ssl.protocol": "TLS"}, "TLSv1.3"),
        ({"zookeeper.ssl.enabled.protocols": "TLSv1.2,TLSv1.3"}, "TLSv1.3"),
        ({"zookeeper.ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}, "TLSv1.2"),
    ],
)
async def test_version_and_suite_are_those_of_the_settings(
    authority: Authority, settings: dict[str, str], version: str
) -> None:
    async with tls_front(authority) as (front, port):
        await speak(broker_config(authority, port, settings))
        [(_, agreed, suite)] = front.seen
        assert agreed == version
        if "zookeeper.ssl.cipher.suites" in settings:
            assert suite == "ECDHE-ECDSA-AES256-GCM-SHA384"


def test_host_name_is_checked_unless_the_setting_is_empty(authority: Authority) -> None:
    stranger = Authority(authority.folder)
    stranger.issue("server", subject="/CN=zookeeper", hosts="DNS:elsewhere")
    try:

        async def story() -> None:
            async with tls_front(authority) as (front, port):
                unchecked = {"zookeeper.ssl.endpoint.identification.algorithm": ""}
                await speak(broker_config(authority, port, unchecked))
                with pytest.raises(Exception, match=r"127\.0\.0\.1"):
                    await speak(broker_config(authority, port, {"zookeeper.connection.timeout.ms": "1000"}))
                assert len(front.seen) == 1

        run(story())
    finally:
        stranger.issue("server", subject="/CN=zookeeper")


def test_settings_that_cannot_work_are_refused_at_start(authority: Authority) -> None:
    for settings in (
        {"zookeeper.ssl.protocol": "SSLv3"},
        {"zookeeper.ssl.cipher.suites": "TLS_NO_SUCH_SUITE"},
        {"zookeeper.ssl.truststore.location": "/nowhere.pem"},
    ):
        with pytest.raises(ConfigError, match=r"zookeeper\.ssl\.\* settings cannot be used"):
            session_config(broker_config(authority, 1, settings))


def test_number_of_requests_in_flight_follows_the_setting() -> None:
    plain = {"zookeeper.connect": "h:1"}
    assert session_config(BrokerConfig.parse(plain)).in_flight_max == IN_FLIGHT_MAX
    for given, taken in (("3", 3), ("100000", IN_FLIGHT_MAX)):
        config = BrokerConfig.parse({**plain, "zookeeper.max.in.flight.requests": given})
        assert session_config(config).in_flight_max == taken
