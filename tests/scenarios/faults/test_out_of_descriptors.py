"""Strangers that open connections until no descriptor is left, against a real broker with a limit of 1024."""

import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from barnabas.base.host.descriptors import SOFT_LIMIT_MAX
from barnabas.cli.local_cluster import LocalCluster
from barnabas.wire.auth.authority import LocalAuthority
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tests.scenarios.faults.hostile_peer import Victim, ask

DESCRIPTORS = 1024
#: The start of a TLS record that is never completed.
HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder: Path = tmp_path_factory.mktemp("pki")
    authority = LocalAuthority.create("test")
    (folder / "broker.pem").write_text(authority.issue("broker", ["127.0.0.1"]))
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0,TLS://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "socket.listen.backlog.size": "2000",
        "log.flush.offset.checkpoint.interval.ms": "100",
        # This test is not about the limit for each address.
        "max.connections.per.ip": "100000",
    }
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, DESCRIPTORS), hard))  # a broker inherits it
    with contextlib.ExitStack() as stack:
        try:
            one = stack.enter_context(LocalCluster(brokers=1, config=config))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        given = psutil.Process(one.pid(1)).rlimit(psutil.RLIMIT_NOFILE)
        assert given == (min(hard, SOFT_LIMIT_MAX), hard), "a broker takes what it may have"
        psutil.Process(one.pid(1)).rlimit(psutil.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        yield one


@pytest.fixture
def victim(cluster: LocalCluster, topic: str) -> Iterator[Victim]:
    attacked = Victim(cluster, topic)
    yield attacked
    for peer in attacked.peers:
        peer.close()


@pytest.mark.parametrize("listener", ["PLAINTEXT", "TLS"])
def test_strangers_take_no_descriptor_that_files_need(victim: Victim, listener: str):
    port = int(victim.cluster.listener_address(1, listener).rpartition(":")[2])
    friend = victim.connect()  # clients that are connected are served
    for _ in range(DESCRIPTORS * 2):
        peer = socket.create_connection(("127.0.0.1", port), timeout=60)
        victim.peers.append(peer)
        if listener == "TLS":
            with contextlib.suppress(ConnectionError):
                peer.sendall(HALF_HELLO)
    victim.write()
    broker = psutil.Process(victim.cluster.pid(1))
    victim.admin.wait(lambda: broker.num_fds() > DESCRIPTORS * 0.7, "the strangers to come to the limit")
    # New partitions need files while the flood lasts.
    other = f"{victim.topic}-b"
    new = CreatableTopic(name=other, num_partitions=20, replication_factor=1)
    answer = ask(friend, CreateTopicsRequest(topics=[new], timeout_ms=10_000), 5)
    assert isinstance(answer, CreateTopicsResponse) and answer.topics[0].error_code == 0
    logs = victim.cluster.log_dir(1)
    victim.admin.wait(lambda: len(list(logs.glob(f"{other}-*/*.log"))) == 20, "the files of 20 partitions")
    assert not victim.logged("goes offline")
    for peer in victim.peers:
        peer.close()
    victim.peers.clear()
    victim.admin.wait(lambda: victim.admin.partitions(other), "a new client to be served")
