"""confluent-kafka, aiokafka and kafka-python on every kind of listener: which clients are accepted, and which are not.

One table for all of them. OAUTHBEARER, SCRAM and authorization have separate tests.
"""

import asyncio
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka import AIOKafkaClient
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from barnabas.cli.local_cluster import LocalCluster
from tests.pki import Authority
from tests.scenarios.security.secured import ALICE, PLAIN_MODULE, bootstrap_of, kafka_python_comes_in

LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "MUTUAL": "SSL",
    "CLEAR": "SASL_PLAINTEXT",
    "SECURE": "SASL_SSL",
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
}


@dataclass(frozen=True)
class Case:
    listener: str
    comes_in: bool
    password: str | None = None
    #: The client's certificate, and the authority that it trusts.
    certificate: str | None = None
    trusts: str = "own"


CASES = (
    Case("SSL", True),
    Case("SSL", False, trusts="stranger"),
    Case("MUTUAL", True, certificate="alice"),
    Case("MUTUAL", False),
    Case("MUTUAL", False, certificate="mallory"),
    Case("MUTUAL", False, certificate="late"),
    Case("CLEAR", True, password=ALICE[1]),
    Case("CLEAR", False, password="guess"),
    Case("SECURE", True, password=ALICE[1]),
    Case("SECURE", False, password="guess"),
    Case("SECURE", False, password=ALICE[1], trusts="stranger"),
    Case("EXPIRED", False),
    Case("ELSEWHERE", False),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create certificates; `own` is the cluster's authority."""
    made: Path = tmp_path_factory.mktemp("pki")
    own, stranger = Authority.create(made / "own"), Authority.create(made / "stranger", "Stranger")
    own.issue("broker", subject="/CN=broker")
    own.issue("alice", subject="/CN=alice")
    own.issue("late", subject="/CN=alice", days=-1)
    own.issue("expired", subject="/CN=broker", days=-1)
    own.issue("elsewhere", subject="/CN=broker", hosts="DNS:elsewhere.example")
    both = stranger.issue("mallory", subject="/CN=alice")
    (made / "own" / "mallory.pem").write_text(both.read_text())
    return made


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[LocalCluster]:
    line = f'{PLAIN_MODULE} required user_{ALICE[0]}="{ALICE[1]}";'
    config = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in LISTENERS.items()),
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "own" / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "own" / "ca.pem"),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.expired.ssl.keystore.location": str(folder / "own" / "expired.pem"),
        "listener.name.elsewhere.ssl.keystore.location": str(folder / "own" / "elsewhere.pem"),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.clear.plain.sasl.jaas.config": line,
        "listener.name.secure.plain.sasl.jaas.config": line,
    }
    with LocalCluster(brokers=1, config=config) as running:
        yield running


def test_confluent_kafka(cluster: LocalCluster, folder: Path) -> None:
    def comes_in(case: Case) -> bool:
        settings: dict[str, object] = {
            "bootstrap.servers": bootstrap_of(cluster, case.listener),
            "security.protocol": LISTENERS[case.listener],
            "log_level": 0,
        }
        if "SSL" in LISTENERS[case.listener]:
            settings["ssl.ca.location"] = str(folder / case.trusts / "ca.pem")
        if case.certificate is not None:
            both = str(folder / "own" / f"{case.certificate}.pem")
            settings |= {"ssl.certificate.location": both, "ssl.key.location": both}
        if case.password is not None:
            settings |= {"sasl.mechanism": "PLAIN", "sasl.username": ALICE[0], "sasl.password": case.password}
        try:
            AdminClient(settings).list_topics(timeout=20 if case.comes_in else 3)
        except KafkaException:
            return False
        return True

    with ThreadPoolExecutor(len(CASES)) as pool:
        outcome = dict(zip(CASES, pool.map(comes_in, CASES), strict=True))
    assert outcome == {case: case.comes_in for case in CASES}


def test_aiokafka(cluster: LocalCluster, folder: Path) -> None:
    async def comes_in(case: Case) -> bool:
        context = None
        if "SSL" in LISTENERS[case.listener]:
            context = ssl.create_default_context(cafile=str(folder / case.trusts / "ca.pem"))
            if case.certificate is not None:
                context.load_cert_chain(folder / "own" / f"{case.certificate}.pem")
        client = AIOKafkaClient(
            bootstrap_servers=bootstrap_of(cluster, case.listener),
            security_protocol=LISTENERS[case.listener],
            ssl_context=context,
            sasl_mechanism="PLAIN",
            sasl_plain_username=ALICE[0],
            sasl_plain_password=case.password,
        )
        try:
            await client.bootstrap()
        except AioKafkaError:
            return False
        finally:
            await client.close()
        return True

    async def all_of_them() -> dict[Case, bool]:
        async with asyncio.timeout(90):
            return dict(zip(CASES, await asyncio.gather(*map(comes_in, CASES)), strict=True))

    assert asyncio.run(all_of_them()) == {case: case.comes_in for case in CASES}


def test_kafka_python(cluster: LocalCluster, folder: Path) -> None:
    def settings(case: Case) -> dict[str, object]:
        found: dict[str, object] = {
            "bootstrap_servers": bootstrap_of(cluster, case.listener),
            "security_protocol": LISTENERS[case.listener],
        }
        if "SSL" in LISTENERS[case.listener]:
            found["ssl_cafile"] = str(folder / case.trusts / "ca.pem")
        if case.certificate is not None:
            both = str(folder / "own" / f"{case.certificate}.pem")
            found |= {"ssl_certfile": both, "ssl_keyfile": both}
        if case.password is not None:
            found |= {"sasl_mechanism": "PLAIN", "sasl_plain_username": ALICE[0], "sasl_plain_password": case.password}
        return found

    outcome = kafka_python_comes_in(*map(settings, CASES))
    assert dict(zip(CASES, outcome, strict=True)) == {case: case.comes_in for case in CASES}
