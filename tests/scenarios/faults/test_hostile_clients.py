"""Peers that speak nonsense, too much, or not at all, against a real broker: others are served as ever, memory stays
bounded, and the log says what happened."""

import contextlib
import random
import resource
import socket
import struct
import time
from collections.abc import Iterator

import psutil
import pytest
from confluent_kafka import Producer
from conftest import Admin  # type: ignore[attr-defined]
from tests.soak.workload import QUIET

from barnabas.cli.local_cluster import LocalCluster
from barnabas.protocol import frame
from barnabas.protocol.compression import Codec, compress
from barnabas.protocol.messages.metadata import MetadataRequest
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.varint import encode_varint

#: What one broker may grow by while it is attacked.
GROWTH_BYTES_MAX = 80_000_000
#: A record is acknowledged within this while others attack; a loaded test machine needs most of it.
LATENCY_S_MAX = 1.0


@pytest.fixture(scope="module")
def cluster():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 20_000)), hard))  # the broker inherits it
    # With Kafka's default backlog of 50 the kernel drops connections that come faster than a busy machine accepts them.
    config = {"auto.create.topics.enable": "false", "socket.listen.backlog.size": "1000"}
    with LocalCluster(brokers=1, config=config) as one:
        yield one


class Victim:
    """The broker as an honest client and its operator see it."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.cluster = cluster
        self.admin = Admin(cluster)
        self.admin.create(topic, replicas=1)
        self.topic = topic
        self.peers: list[socket.socket] = []
        self.address = ("127.0.0.1", int(cluster.address(1).rpartition(":")[2]))
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, **QUIET})
        self._write()
        self._process = psutil.Process(cluster.pid(1))
        self._rss = self._process.memory_info().rss
        self._log_size = len(cluster.log(1))

    def connect(self) -> socket.socket:
        peer = socket.create_connection(self.address, timeout=10)
        self.peers.append(peer)
        return peer

    def _write(self) -> float:
        """How long one record of a client that is connected takes, in seconds."""
        began = time.monotonic()
        errors: list[object] = []
        self._producer.produce(self.topic, b"honest", on_delivery=lambda error, message: errors.append(error))
        assert self._producer.flush(10) == 0
        assert errors == [None]
        return time.monotonic() - began

    def check(self) -> None:
        took = self._write()
        assert took < LATENCY_S_MAX, f"an honest record took {took:.2f} s"
        growth = self._process.memory_info().rss - self._rss
        assert growth < GROWTH_BYTES_MAX, f"the broker grew by {growth:,} bytes"
        assert "Traceback" not in self.cluster.log(1)

    def logged(self, *words: str) -> bool:
        new = self.cluster.log(1)[self._log_size :]
        return any(all(word in line for word in words) for line in new.splitlines())


@pytest.fixture
def victim(cluster: LocalCluster, topic: str) -> Iterator[Victim]:
    attacked = Victim(cluster, topic)
    yield attacked
    for peer in attacked.peers:
        peer.close()


def is_closed(peer: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        return peer.recv(1) == b""
    return True


def test_random_bytes_close_their_connection_only(victim: Victim):
    chance = random.Random(7)
    for _ in range(200):
        with victim.connect() as peer, contextlib.suppress(ConnectionError):
            peer.sendall(chance.randbytes(chance.randrange(1, 400)))
    victim.check()


def test_huge_lengths_take_no_memory_and_are_told(victim: Victim):
    for claimed in (2**31 - 1, 2**30, -1, -(2**31)):
        with victim.connect() as peer:
            peer.sendall(struct.pack(">i", claimed) + b"x" * 100)
            assert is_closed(peer)
    assert victim.logged("WARNING")
    peers = [victim.connect() for _ in range(50)]
    for peer in peers:
        peer.sendall(struct.pack(">i", 100_000_000) + b"x" * 1000)
    victim.check()
    for peer in peers:
        peer.close()


def test_half_frames_and_five_thousand_connections_hurt_nobody(victim: Victim):
    peers = [victim.connect() for _ in range(5000)]
    request = frame.encode_request(MetadataRequest(topics=[]), 9, 1, "half")
    for peer in peers[::2]:
        peer.sendall(request[: len(request) // 2])
    victim.check()
    for peer in peers:
        peer.close()
    victim.check()


def test_flood_of_pipelined_requests_from_peers_that_do_not_read(victim: Victim):
    request = frame.encode_request(MetadataRequest(topics=None), 9, 1, "flood") * 2000
    peers = [victim.connect() for _ in range(5)]
    for peer in peers:
        peer.settimeout(0.3)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while True:
                peer.sendall(request)
    victim.check()
    for peer in peers:
        peer.close()


def batch(codec: Codec, records: bytes, count: int) -> bytearray:
    """A batch with a right checksum around any bytes."""
    from barnabas.protocol.record_batch import HEADER, compute_crc

    head = HEADER.pack(0, 49 + len(records), 0, 2, 0, codec.value, count - 1, 0, 0, -1, -1, -1, count)
    data = bytearray(head + records)
    struct.pack_into(">I", data, 17, compute_crc(data, 0, len(data) - 12))
    return data


def send(victim: Victim, topic: str, records: bytes) -> bytes:
    data = PartitionProduceData(index=0, records=records)
    request = ProduceRequest(acks=1, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=[data])])
    with victim.connect() as peer:
        peer.sendall(frame.encode_request(request, 9, 1, "hostile"))
        (size,) = struct.unpack(">i", peer.recv(4, socket.MSG_WAITALL))
        return peer.recv(size, socket.MSG_WAITALL)


def test_wrong_checksum_is_refused(victim: Victim):
    broken = batch(Codec.NONE, b"no records", 1)
    broken[-1] ^= 1
    answer = send(victim, victim.topic, bytes(broken))
    assert struct.pack(">ih", 0, 2) in answer, "CORRUPT_MESSAGE for partition 0"
    victim.check()


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_decompression_bomb_on_a_compacted_topic_is_refused(victim: Victim, codec: Codec):
    compacted = f"{victim.topic}-c"
    victim.admin.create(compacted, replicas=1, cleanup_policy="compact")
    for beginning, why in ((b"", b"record of 0 bytes"), (encode_varint(600_000_000), b"larger than the limit")):
        bomb = compress(codec, beginning + bytes(300_000_000))
        assert len(bomb) < 1_000_000
        began = time.monotonic()
        answer = send(victim, compacted, bytes(batch(codec, bomb, 1)))
        assert why in answer
        assert time.monotonic() - began < 3
    victim.check()
