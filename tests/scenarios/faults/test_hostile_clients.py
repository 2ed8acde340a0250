"""Peers that send nonsense, too much, or nothing, against a real broker: other clients are served as before, memory stays
bounded, and the log says what happened.
"""

import contextlib
import random
import resource
import struct
from collections.abc import Iterator

import pytest

from barnabas.cli.local_cluster import LocalCluster
from barnabas.wire import frame
from barnabas.wire.compression import Codec, compress
from barnabas.wire.messages.metadata import MetadataRequest
from barnabas.wire.varint import encode_varint
from tests.scenarios.faults.hostile_peer import Victim, batch, is_closed, send


@pytest.fixture(scope="module")
def cluster():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 20_000)), hard))  # the broker inherits it
    # With Kafka's default backlog of 50 the kernel drops connections that arrive faster than a busy machine accepts them.
    config = {
        "auto.create.topics.enable": "false",
        "socket.listen.backlog.size": "1000",
        "max.connections.per.ip": "10000",
    }
    with LocalCluster(brokers=1, config=config) as one:
        yield one


@pytest.fixture
def victim(cluster: LocalCluster, topic: str) -> Iterator[Victim]:
    attacked = Victim(cluster, topic)
    yield attacked
    for peer in attacked.peers:
        peer.close()


def test_random_bytes_close_their_connection_only(victim: Victim):
    chance = random.Random(7)
    for _ in range(200):
        with victim.connect() as peer, contextlib.suppress(ConnectionError):
            peer.sendall(chance.randbytes(chance.randrange(1, 400)))
    victim.check()


def test_huge_lengths_take_no_memory_and_are_logged(victim: Victim):
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


def test_slow_peers_that_announce_a_hundred_megabytes_take_only_what_they_have_sent(victim: Victim):
    """On a listener without a login: peers announce 30 GB and send 15 MB."""
    peers = [victim.connect() for _ in range(300)]
    for piece in range(5):
        for peer in peers:
            peer.sendall((struct.pack(">i", 100_000_000) if piece == 0 else b"") + b"x" * 10_000)
    victim.check()
    for peer in peers:
        peer.close()


def test_half_frames_and_five_thousand_connections_do_not_delay_other_clients(victim: Victim):
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
        bomb = compress(codec, beginning + bytes(120_000_000))
        assert len(bomb) < 1_000_000
        began_s = victim.computed_s()
        answer = send(victim, compacted, bytes(batch(codec, bomb, 1)))
        assert why in answer
        assert victim.computed_s() - began_s < 3
    victim.check()
