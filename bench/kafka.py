"""Apache Kafka 3.9.1 in ZooKeeper mode, from Maven, as processes on this machine, for comparison."""

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.interop.maven import classpath

KAFKA = ("org.apache.kafka:kafka_2.13:3.9.1", "org.slf4j:slf4j-reload4j:1.7.36")
ZOOKEEPER_MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
READY_TIMEOUT_S = 60.0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path, timeout_s: float = READY_TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"process ended with {process.returncode}:\n{log.read_text()[-2000:]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.01)
    raise TimeoutError(f"nothing listens on {port} after {timeout_s} s:\n{log.read_text()[-2000:]}")


@dataclass(kw_only=True)
class ApacheKafka:
    """`with ApacheKafka(brokers=3) as kafka: kafka.bootstrap`"""

    brokers: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    heap: str = "1g"
    zookeeper: str | None = None
    #: Sessions last at least twice as long.
    tick_time_ms: int = 2000
    #: By broker; other brokers get free ports.
    ports: dict[int, int] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="apache-kafka-"))
        (self.folder / "log4j.properties").write_text(
            "log4j.rootLogger=WARN, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n\n"
        )
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            if self.zookeeper is None:
                self._start_zookeeper()
            for broker_id in range(1, self.brokers + 1):
                self.start_broker(broker_id)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for process in reversed(self.processes.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    @property
    def broker_ids(self) -> range:
        return range(1, self.brokers + 1)

    def address(self, broker_id: int) -> str:
        return f"127.0.0.1:{self.ports[broker_id]}"

    def pid(self, broker_id: int) -> int:
        return self.processes[f"broker-{broker_id}"].pid

    def log_dir(self, broker_id: int) -> Path:
        return self.folder / f"data-{broker_id}"

    def _start_zookeeper(self) -> None:
        port = free_port()
        data = self.folder / "zookeeper"
        data.mkdir()
        config = self.folder / "zoo.cfg"
        config.write_text(
            f"tickTime={self.tick_time_ms}\ndataDir={data}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n"
        )
        self.zookeeper = f"127.0.0.1:{port}"
        process = self._java("zookeeper", ZOOKEEPER_MAIN, [str(config)], heap="256m")
        wait_for_port(port, process, self.folder / "zookeeper.log")

    def start_broker(self, broker_id: int) -> float:
        """Start a broker; return the seconds until its port is open."""
        return self.start_brokers([broker_id])

    def start_brokers(self, broker_ids: Sequence[int], timeout_s: float = READY_TIMEOUT_S) -> float:
        """Start all at once; return the seconds until all ports are open."""
        began = time.monotonic()
        for broker_id, process in [(each, self._launch(each)) for each in broker_ids]:
            wait_for_port(self.ports[broker_id], process, self.folder / f"broker-{broker_id}.log", timeout_s)
        return time.monotonic() - began

    def kill(self, broker_id: int) -> None:
        """Kill the broker with SIGKILL."""
        process = self.processes[f"broker-{broker_id}"]
        process.kill()
        process.wait()

    def terminate(self, broker_id: int, *, timeout_s: float = 120) -> None:
        process = self.processes[f"broker-{broker_id}"]
        process.terminate()
        process.wait(timeout_s)

    def _launch(self, broker_id: int) -> subprocess.Popen[bytes]:
        port = self.ports.setdefault(broker_id, free_port())
        settings = {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "zookeeper.connect": self.zookeeper or "",
            "zookeeper.session.timeout.ms": "6000",
            "log.dirs": str(self.log_dir(broker_id)),
            "offsets.topic.replication.factor": str(min(3, self.brokers)),
            "transaction.state.log.replication.factor": str(min(3, self.brokers)),
            "group.initial.rebalance.delay.ms": "0",
            **self.config,
        }
        file = self.folder / f"broker-{broker_id}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return self._java(f"broker-{broker_id}", "kafka.Kafka", [str(file)], heap=self.heap)

    def _java(self, name: str, main: str, arguments: list[str], *, heap: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.log").open("ab")
        command = [
            "java", f"-Xmx{heap}", f"-Xms{heap}", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
            f"-Dlog4j.configuration=file:{self.folder}/log4j.properties", "-cp", classpath(*KAFKA), main, *arguments,
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        log.close()
        self.processes[name] = process
        return process


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU time of processes and their children so far, to the nanosecond: ticks are 10 ms, and sampled."""
    nanoseconds = 0
    for pid in _with_children(pids):
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                nanoseconds += int(thread.read_text().split()[0])
    return nanoseconds / 1e9


def resident_mb(pids: list[int]) -> float:
    """Return the proportional set size of processes and their children, which counts shared pages once."""
    total_kb = 0
    for pid in _with_children(pids):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total_kb += int(line.split()[1])
    return total_kb / 1024


def _with_children(pids: list[int]) -> Iterator[int]:
    for pid in pids:
        yield pid
        with contextlib.suppress(FileNotFoundError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            yield from _with_children([int(child) for child in children])
