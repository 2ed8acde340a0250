"""Hostile input: the server stays up and small, and serves other clients."""

import contextlib
import os
import random
import socket
import struct
from pathlib import Path

import pytest

from barnabas.testing import wait_until
from barnabas.zookeeper import wire
from barnabas.zookeeper.acl import READ_ACL, digest_of
from barnabas.zookeeper.wire import Err, Op
from tests.computed import computed_s
from tests.scenarios.zookeeper.zk_process import ZooKeeperProcess, four_letter_word, running
from tests.scenarios.zookeeper.zk_raw import RawClient, create, set_data, watched

MB = 1 << 20


def serves(server: ZooKeeperProcess) -> None:
    with RawClient(server.port) as client:
        assert client.connect()
        assert client.call(Op.EXISTS, watched("/")).err == 0


@pytest.mark.parametrize("seed", range(20))
def test_garbage_before_the_handshake(server: ZooKeeperProcess, seed: int) -> None:
    rng = random.Random(seed)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock, contextlib.suppress(OSError):
        sock.sendall(rng.randbytes(rng.choice([1, 4, 5, 45, 5000])))
    serves(server)


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 0x100000])
def test_impossible_lengths_end_the_connection(server: ZooKeeperProcess, length: int) -> None:
    with RawClient(server.port) as client:
        client.sock.sendall(struct.pack(">i", length))
        assert client.is_closed()
    with RawClient(server.port) as client:
        assert client.connect()
        client.sock.sendall(struct.pack(">i", length))
        assert client.is_closed()
    serves(server)


@pytest.mark.parametrize("seed", range(10))
def test_garbage_in_requests_is_answered_or_ends_the_connection(server: ZooKeeperProcess, seed: int) -> None:
    rng = random.Random(seed)
    ops = [int(op) for op in Op if op != Op.CLOSE_SESSION]
    with RawClient(server.port) as client:
        assert client.connect()
        try:
            for _ in range(200):
                reply = client.call(rng.choice(ops), rng.randbytes(rng.randrange(40)))
                assert reply.err <= 0
        except ConnectionError:
            pass
    serves(server)


def test_every_length_inside_a_request_may_lie(server: ZooKeeperProcess) -> None:
    honest = create("/lies", b"data")
    with RawClient(server.port) as client:
        assert client.connect()
        for at in range(len(honest) - 3):
            for lie in (0x7FFFFFFF, -2, 1000):
                body = honest[:at] + struct.pack(">i", lie) + honest[at + 4 :]
                assert client.call(Op.CREATE, body).err <= 0
        assert client.call(Op.CREATE, create("/truth")).err == 0


def test_request_of_eight_bytes_less_one_ends_the_connection(server: ZooKeeperProcess) -> None:
    with RawClient(server.port) as client:
        assert client.connect()
        client.send_frame(bytes(7))
        assert client.is_closed()
    serves(server)


def test_byte_by_byte_is_fine(server: ZooKeeperProcess) -> None:
    with RawClient(server.port) as client:
        assert client.connect()
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = struct.pack(">ii", 1, Op.EXISTS) + watched("/")
        for byte in struct.pack(">i", len(body)) + body:
            client.sock.sendall(bytes([byte]))
        assert client.reply().err == 0


def test_two_thousand_connections_and_the_two_thousand_first_is_served(server: ZooKeeperProcess) -> None:
    before = server.rss_bytes()
    sockets = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(2000)]
    try:
        serves(server)
        assert int(four_letter_word(server.port, b"mntr").split("zk_num_alive_connections\t")[1].split()[0]) >= 2000
        assert server.rss_bytes() - before < 60 * MB
    finally:
        for sock in sockets:
            sock.close()
    wait_until(lambda: "\nConnections: 1\n" in four_letter_word(server.port, b"srvr"))


def test_connections_per_host_and_sessionless_connections_are_limited(data: Path) -> None:
    with running(data, "--max-client-cnxns", "3") as server:
        with RawClient(server.port) as a, RawClient(server.port) as b, RawClient(server.port) as c:
            assert all(client.connect() for client in (a, b, c))
            with RawClient(server.port) as d:
                assert d.is_closed()
            assert a.call(Op.EXISTS, watched("/")).err == 0
        wait_until(lambda: _admitted(server))


def _admitted(server: ZooKeeperProcess) -> bool:
    with RawClient(server.port) as client:
        try:
            return client.connect()
        except ConnectionError:
            return False


def test_client_that_never_reads_its_answers_stops_being_read(server: ZooKeeperProcess) -> None:
    with RawClient(server.port) as writer:
        assert writer.connect()
        assert writer.call(Op.CREATE, create("/big", bytes(900_000))).err in (0, Err.NODE_EXISTS)
    before = server.rss_bytes()
    with RawClient(server.port) as client:
        assert client.connect()
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sock.settimeout(0.5)
        request = struct.pack(">ii", 1, Op.GET_DATA) + watched("/big")
        frame = struct.pack(">i", len(request)) + request
        sent = 0
        # The answers to all of these requests would have 18 GB.
        with contextlib.suppress(TimeoutError):
            for _ in range(20_000):
                sent += client.sock.send(frame * 10)
        serves(server)
        assert server.rss_bytes() - before < 60 * MB


def test_client_that_never_reads_its_events_is_dropped(server: ZooKeeperProcess) -> None:
    before = server.rss_bytes()
    path = "/" + "x" * 100_000
    with RawClient(server.port) as deaf, RawClient(server.port) as writer:
        deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        assert deaf.connect()
        assert writer.connect(timeout_ms=60_000)
        assert deaf.call(Op.ADD_WATCH, wire.text("/") + struct.pack(">i", 1)).err == 0
        writer.call(Op.CREATE, create(path))
        for _ in range(400):
            assert writer.call(Op.SET_DATA, set_data(path, b"")).err == 0
        assert server.rss_bytes() - before < 60 * MB
        assert "zk_num_alive_connections\t2" in four_letter_word(server.port, b"mntr"), "the writer and this question"


def test_flood_of_large_writes_is_held_back_not_hoarded(server: ZooKeeperProcess) -> None:
    before = server.rss_bytes()
    with RawClient(server.port, timeout_s=60) as client:
        assert client.connect(timeout_ms=60_000)
        client.call(Op.CREATE, create("/flood"))
        request = struct.pack(">ii", 7, Op.SET_DATA) + set_data("/flood", os.urandom(500_000))
        frame = struct.pack(">i", len(request)) + request
        count = 200
        sender_pid = os.fork()
        if sender_pid == 0:
            for _ in range(count):
                client.sock.sendall(frame)
            os._exit(0)
        peak = 0
        for _ in range(count):
            assert client.reply().err == 0
            peak = max(peak, server.rss_bytes())
        assert os.waitpid(sender_pid, 0)[1] == 0
        assert peak - before < 80 * MB


def test_whitelist_of_four_letter_words(data: Path) -> None:
    with running(data, "--4lw-commands-whitelist", "ruok, mntr") as server:
        assert four_letter_word(server.port, b"ruok") == "imok"
        assert four_letter_word(server.port, b"srvr").startswith("Zookeeper version: 3.8.4")
        assert four_letter_word(server.port, b"dump") == "dump is not executed because it is not in the whitelist.\n"


def auth(user: str, *, scheme: str = "digest") -> bytes:
    return struct.pack(">i", 0) + wire.text(scheme) + wire.buffer(user.encode())


def read_again_and_again(path: str, count: int) -> bytes:
    one = wire.MULTI_HEADER.pack(Op.GET_DATA, False, -1) + watched(path)
    return one * count + wire.MULTI_END


def test_small_request_for_gigabytes_is_refused_and_takes_no_memory(server: ZooKeeperProcess) -> None:
    with RawClient(server.port, timeout_s=60) as client:
        assert client.connect(timeout_ms=60_000)
        assert client.call(Op.CREATE, create("/often", bytes(900_000))).err == 0
        before = server.rss_bytes()
        assert client.call(Op.MULTI_READ, read_again_and_again("/often", 8)).err == 0
        assert client.call(Op.MULTI_READ, read_again_and_again("/often", 1800)).err == Err.MARSHALLING_ERROR
        assert client.call(Op.MULTI_READ, read_again_and_again("/", 6000)).err == Err.MARSHALLING_ERROR
        assert server.rss_bytes() - before < 60 * MB
    serves(server)


def test_multi_of_too_many_writes_is_refused(server: ZooKeeperProcess) -> None:
    check = wire.MULTI_HEADER.pack(Op.CHECK, False, -1) + wire.text("/") + struct.pack(">i", -1)
    with RawClient(server.port, timeout_s=60) as client:
        assert client.connect(timeout_ms=60_000)
        assert client.call(Op.MULTI, check * 5000 + wire.MULTI_END).err == 0
        assert client.call(Op.MULTI, check * 5001 + wire.MULTI_END).err == Err.MARSHALLING_ERROR


def test_non_ascii_digest_is_compared_with_the_super_users(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "zoo.cfg"
    file.write_text(f"DigestAuthenticationProvider.superDigest={digest_of('root:é')}\n", "utf-8")
    with running(data, str(file)) as server:
        with RawClient(server.port) as client:
            assert client.connect()
            assert client.call(Op.AUTH, auth("é:p")).err == 0
            assert client.call(Op.SET_ACL, wire.text("/") + wire.acl_bytes(READ_ACL) + struct.pack(">i", -1)).err == 0
            assert client.call(Op.CREATE, create("/x")).err == Err.NO_AUTH
            assert client.call(Op.AUTH, auth("root:é")).err == 0
            assert client.call(Op.CREATE, create("/x")).err == 0
        serves(server)


def test_connection_with_too_many_names_is_closed(server: ZooKeeperProcess) -> None:
    with RawClient(server.port, timeout_s=30) as client:
        assert client.connect(timeout_ms=30_000)
        answers = [client.call(Op.AUTH, auth(f"user{number}:x")).err for number in range(32)]
        assert answers == [0] * 31 + [Err.AUTH_FAILED], "its address is a name as well"
        assert client.is_closed()
    serves(server)


def test_acl_of_too_many_entries_is_refused(server: ZooKeeperProcess) -> None:
    entries = tuple((31, "digest", f"user{number}:x") for number in range(101))
    with RawClient(server.port) as client:
        assert client.connect()
        body = wire.text("/acl") + wire.buffer(b"") + wire.acl_bytes(entries) + struct.pack(">i", 0)
        assert client.call(Op.CREATE, body).err == Err.INVALID_ACL


def test_client_with_too_many_watches_is_dropped(server: ZooKeeperProcess) -> None:
    before = server.rss_bytes()
    with RawClient(server.port, timeout_s=60) as client:
        assert client.connect(timeout_ms=60_000)
        with pytest.raises(ConnectionError):
            for number in range(100):
                client.call(Op.EXISTS, watched(f"/{number}-" + "x" * 500_000, True))
        assert number > 20
    serves(server)
    assert server.rss_bytes() - before < 60 * MB


@pytest.mark.parametrize(
    ("op", "body", "count"),
    [
        (Op.GET_ALL_CHILDREN_NUMBER, wire.text("/many"), 8_000),
        (Op.MULTI_READ, read_again_and_again("/many", 4_000), 60),
    ],
    ids=["descendants", "multi of reads"],
)
def test_bystander_is_served_while_one_client_asks_for_the_dearest(
    server: ZooKeeperProcess, op: Op, body: bytes, count: int
) -> None:
    with RawClient(server.port, timeout_s=60) as client, RawClient(server.port, timeout_s=60) as bystander:
        assert client.connect(timeout_ms=60_000) and bystander.connect(timeout_ms=60_000)
        if client.call(Op.CREATE, create("/many")).err == 0:
            for number in range(3_000):
                client.request(Op.CREATE, create(f"/many/{number}"))
            for _ in range(3_000):
                assert client.reply().err == 0
        request = struct.pack(">ii", 7, op) + body
        client.sock.sendall((struct.pack(">i", len(request)) + request) * count)
        worst_s = 0.0
        for _ in range(50):
            began_s = computed_s(server.pid)
            assert bystander.call(Op.EXISTS, watched("/")).err == 0
            worst_s = max(worst_s, computed_s(server.pid) - began_s)
        assert worst_s < 0.5
        for _ in range(count):
            assert client.reply().err == 0
