"""`barnabas zookeeper` as a process, for tests: started, killed, started again on the same directory and port."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry


class ZooKeeperProcess:
    def __init__(self, data: Path, *options: str) -> None:
        self._data = data
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        command = [sys.executable, "-m", "barnabas", "zookeeper", "--port", str(self.port), "--data", str(self._data)]
        self._process = subprocess.Popen([*command, *self._options], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("ready zookeeper=127.0.0.1:"), f"not ready: {line!r}"
        self.port = int(line.rpartition(":")[2])

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._finish()

    def terminate(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._finish()

    def _finish(self) -> int:
        process, self._process = self._process, None
        assert process is not None and process.stdout is not None
        code = process.wait(60)
        process.stdout.close()
        return code

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))

    def stop(self) -> None:
        if self._process is not None:
            self.kill()


@contextmanager
def running(data: Path, *options: str) -> Iterator[ZooKeeperProcess]:
    server = ZooKeeperProcess(data, *options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def connected(address: str, *, timeout_s: float = 10.0, **options: object) -> Iterator[KazooClient]:
    retry = KazooRetry(max_tries=-1, delay=0.01, backoff=1, max_delay=0.05)
    client = KazooClient(address, timeout=timeout_s, connection_retry=retry, **options)
    client.start(15)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def four_letter_word(port: int, word: bytes, *, host: str = "127.0.0.1") -> str:
    with socket.create_connection((host, port), timeout=60) as sock:
        sock.sendall(word)
        chunks = []
        while chunk := sock.recv(65536):
            chunks.append(chunk)
        return b"".join(chunks).decode()
