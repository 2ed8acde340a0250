"""How `barnabas status` and `down` find the clusters of this machine, and how a cluster answers them."""

import json
import os
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.cli import running
from barnabas.cli.local_cluster import ClusterFailed, LocalCluster
from barnabas.cli.local_security import LocalSecurity
from barnabas.cli.running import Reception, Running

SAID = {
    "pid": 1,
    "folder": "/data",
    "bootstrap": "127.0.0.1:9092",
    "zookeeper": "127.0.0.1:2181",
    "brokers": 3,
    "secure": False,
    "started_s": 1.0,
}


def test_registration_of_an_older_release_with_fewer_fields_is_read() -> None:
    assert Running.of(SAID).console is None


def test_registration_of_a_newer_release_with_more_fields_is_read() -> None:
    assert Running.of({**SAID, "console": "http://127.0.0.1:8080", "moon": "full"}).console == "http://127.0.0.1:8080"


@pytest.fixture
def reception(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Reception:
    """Of a cluster with broker 1, which restarts."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    member = SimpleNamespace(running=True, pid=4711, exit_code=None, log=Path("broker-1.log"))

    def found(broker_id: int) -> Any:
        if broker_id != 1:
            raise ClusterFailed(f"there is no broker {broker_id}")
        return member

    cluster = SimpleNamespace(
        folder=tmp_path,
        bootstrap="127.0.0.1:9092",
        zookeeper_connect="127.0.0.1:2181",
        brokers=1,
        broker_ids=range(1, 2),
        secure=False,
        schema_registry=False,
        console=False,
        member=found,
        address=lambda broker_id: "127.0.0.1:9092",
        terminate=lambda broker_id: 0,
        start_broker=lambda broker_id: None,
    )
    return Reception(cast(LocalCluster, cluster))


def said_to(reception: Reception, line: bytes) -> Any:
    """What the cluster answers to these bytes; None: nothing."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(30)
        sock.connect(str(running.runtime_folder() / f"{os.getpid()}.sock"))
        sock.sendall(line)
        sock.shutdown(socket.SHUT_WR)
        reception.serve(30)
        answer = sock.makefile("rb").readline()
    return json.loads(answer) if answer else None


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"what is this",
        b"[1, 2]",
        b"null",
        b'"status"',
        b"[" * 60_000,
        b"\xff\xfe",
        b'{"do": ["status"]}',
        b'{"do": "restart"}',
        b'{"do": "restart", "broker": "1"}',
        b'{"do": "restart", "broker": 99}',
        b'{"do": "dance"}',
        b"x" * 65536,
    ],
)
def test_invalid_command_gets_an_error_and_the_cluster_continues(reception: Reception, line: bytes) -> None:
    with reception:
        assert set(said_to(reception, line + (b"\n" if len(line) < 65536 else b""))) == {"error"}
        assert said_to(reception, b"") is None
        assert said_to(reception, b'{"do": "status"}\n')["answer"][0]["id"] == 1
        assert said_to(reception, b'{"do": "restart", "broker": 1}\n')["answer"]["pid"] == 4711


def test_line_without_an_end_delays_the_cluster_for_a_bounded_time(
    reception: Reception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_CONNECT_TIMEOUT_S", 0.5)
    is_over = threading.Event()

    def drip() -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(running.runtime_folder() / f"{os.getpid()}.sock"))
            try:
                while not is_over.wait(0.05):
                    sock.sendall(b" ")
            except BrokenPipeError:
                return  # the cluster has ended the connection

    with reception:
        thread = threading.Thread(target=drip)
        thread.start()
        reception.serve(30)
        is_over.set()
        thread.join()


def test_secure_cluster_of_an_earlier_release_gets_a_secret_for_passwords_and_keeps_it(tmp_path: Path) -> None:
    """Without one, no link with a password could be made on it."""
    (tmp_path / "secrets.json").write_text(json.dumps({"passwords": {"admin": "a"}, "zookeeper": "z", "tokens": "t"}))
    secret = LocalSecurity.prepare(tmp_path, "127.0.0.1").encoder_secret
    assert len(secret) >= 24
    again = LocalSecurity.prepare(tmp_path, "127.0.0.1")
    assert again.encoder_secret == secret and again.token_key == "t"
    assert again.broker_settings("127.0.0.1", 0, own_zookeeper=True)["password.encoder.secret"] == secret
