"""A broker under systemd: its notifications, from its start to its end."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from barnabas.cli.local_cluster import LocalCluster


def test_broker_tells_systemd_that_it_is_ready_lives_and_stops(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    with LocalCluster(brokers=0) as cluster, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        file.write_text(
            f"broker.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path}/logs\n"
            f"zookeeper.connect={cluster.zookeeper_connect}\n"
        )
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        environment.pop("WATCHDOG_PID", None)
        broker = subprocess.Popen(
            [sys.executable, "-m", "barnabas", "broker", str(file)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:

            def next_notification(start: bytes) -> bytes:
                while not (notification := systemd.recv(1000)).startswith(start):
                    assert notification == b"WATCHDOG=1"
                return notification

            assert next_notification(b"READY=1").startswith(b"READY=1\nSTATUS=broker 1 of cluster ")
            assert next_notification(b"WATCHDOG=1")
            broker.send_signal(signal.SIGTERM)
            assert next_notification(b"STOPPING=1")
            assert broker.wait(60) == 0
        finally:
            broker.kill()
            broker.wait()
