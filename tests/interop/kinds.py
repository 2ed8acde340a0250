"""A cluster whose brokers are of several kinds: Apache Kafka 3.9.1, ours, and ours of the last release, on one ZooKeeper.

A broker that was stopped may come back as the other kind: same id, port, properties file and data directory.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from kazoo.client import KazooClient

from barnabas.testing import wait_until
from tests.interop import maven

KAFKA: Final = ("org.apache.kafka:kafka_2.13:3.9.1", "org.slf4j:slf4j-reload4j:1.7.36")
APACHE, OURS, LAST = "apache", "ours", "last"
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0

_LOG4J = """log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
log4j.logger.org.apache.zookeeper=WARN
log4j.logger.kafka.server.KafkaConfig=WARN
log4j.logger.org.apache.kafka.clients=WARN
log4j.logger.state.change.logger=INFO
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@dataclass(kw_only=True)
class MixedCluster:
    """`with MixedCluster(kinds={1: APACHE, 2: OURS}) as cluster: cluster.bootstrap`"""

    kinds: dict[int, str]
    #: Whose ZooKeeper.
    zookeeper_kind: str = OURS
    config: Mapping[str, str] = field(default_factory=dict)
    broker_config: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    heap: str = "384m"
    #: The Python that has our last release, for brokers of that kind.
    last_python: str = ""

    def __post_init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mixed-"))
        self.zookeeper = ""
        self._zookeeper_process: subprocess.Popen[bytes] | None = None
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.ports = {broker_id: free_port() for broker_id in self.kinds}

    def __enter__(self) -> Self:
        (self.folder / "log4j.properties").write_text(_LOG4J)
        try:
            self._start_zookeeper()
            for broker_id in self.kinds:
                self._launch(broker_id)
            for broker_id in self.kinds:
                self.wait_ready(broker_id)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self._processes.values():
            process.wait()
        if self._zookeeper_process is not None:
            self._zookeeper_process.kill()
            self._zookeeper_process.wait()
        if not os.environ.get("KEEP"):
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def address(self, broker_id: int) -> str:
        return f"127.0.0.1:{self.ports[broker_id]}"

    def log_dir(self, broker_id: int) -> Path:
        return self.folder / f"data-{broker_id}"

    def log(self, broker_id: int) -> str:
        return (self.folder / f"broker-{broker_id}.log").read_text(errors="replace")

    def is_running(self, broker_id: int) -> bool:
        process = self._processes.get(broker_id)
        return process is not None and process.poll() is None

    # -- life of brokers ----------------------------------------------------------------------------------------------

    def start(self, broker_id: int, kind: str) -> None:
        """A broker that was stopped, again, as `kind`. Kafka refuses to start while its former session lives."""
        self.kinds[broker_id] = kind
        self._wait_unregistered(broker_id)
        self._launch(broker_id)
        self.wait_ready(broker_id)

    def stop(self, broker_id: int) -> None:
        """SIGTERM: a controlled shutdown, which must end well."""
        process = self._processes[broker_id]
        process.terminate()
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"broker {broker_id} did not stop\n{self.log(broker_id)[-3000:]}") from None
        assert code in (0, 143), f"broker {broker_id} ended with {code}\n{self.log(broker_id)[-3000:]}"

    def kill(self, broker_id: int) -> None:
        self._processes[broker_id].kill()
        self._processes[broker_id].wait()

    def pause(self, broker_id: int) -> None:
        self._processes[broker_id].send_signal(signal.SIGSTOP)

    def resume(self, broker_id: int) -> None:
        self._processes[broker_id].send_signal(signal.SIGCONT)

    def wait_ready(self, broker_id: int) -> None:
        process = self._processes[broker_id]

        def is_up() -> bool:
            assert process.poll() is None, f"broker {broker_id} ended\n{self.log(broker_id)[-3000:]}"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[broker_id]), 0.2):
                return True
            return False

        wait_until(is_up, START_TIMEOUT_S, what=f"broker {broker_id} listens")

    def _wait_unregistered(self, broker_id: int) -> None:
        zk = KazooClient(self.zookeeper)
        zk.start()
        try:
            wait_until(
                lambda: not zk.exists(f"/brokers/ids/{broker_id}"), what=f"the session of broker {broker_id} ends"
            )
        finally:
            zk.stop()
            zk.close()

    # -- processes ----------------------------------------------------------------------------------------------------

    def _launch(self, broker_id: int) -> None:
        file = self.folder / f"broker-{broker_id}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in self._properties(broker_id).items()))
        python = self.last_python if self.kinds[broker_id] == LAST else sys.executable
        command = [python, "-m", "barnabas", "broker", str(file)]
        if self.kinds[broker_id] == APACHE:
            command = self._java("kafka.Kafka", str(file))
        with (self.folder / f"broker-{broker_id}.log").open("ab") as log:
            self._processes[broker_id] = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )

    def _properties(self, broker_id: int) -> dict[str, str]:
        replicas = min(3, len(self.kinds))
        return {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://{self.address(broker_id)}",
            "zookeeper.connect": self.zookeeper,
            "zookeeper.session.timeout.ms": "6000",
            "log.dirs": str(self.log_dir(broker_id)),
            "offsets.topic.replication.factor": str(replicas),
            "offsets.topic.num.partitions": "6",
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.num.partitions": "6",
            "transaction.state.log.min.isr": str(max(1, replicas - 1)),
            "min.insync.replicas": str(max(1, replicas - 1)),
            "default.replication.factor": str(replicas),
            "group.initial.rebalance.delay.ms": "0",
            "controlled.shutdown.retry.backoff.ms": "500",
            "auto.leader.rebalance.enable": "false",
            "num.network.threads": "2",
            "num.io.threads": "4",
            "log.cleaner.dedupe.buffer.size": "4194304",
            "log.segment.bytes": "1048576",
            "log.segment.delete.delay.ms": "500",
            "replica.lag.time.max.ms": "10000",
            **self.config,
            **self.broker_config.get(broker_id, {}),
        }

    def _java(self, main: str, *arguments: str, heap: str = "") -> list[str]:
        logging = f"-Dlog4j.configuration=file:{self.folder}/log4j.properties"
        options = [f"-Xmx{heap or self.heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", logging]
        return ["java", *options, "-cp", maven.classpath(*KAFKA), main, *arguments]

    def _start_zookeeper(self) -> None:
        port = free_port()
        self.zookeeper = f"127.0.0.1:{port}/cluster"
        data = self.folder / "zookeeper"
        data.mkdir()
        command = [sys.executable, "-m", "barnabas", "zookeeper", "--port", str(port), "--data", str(data)]
        command += ["--max-client-cnxns", "0"]
        if self.zookeeper_kind == APACHE:
            config = self.folder / "zoo.cfg"
            config.write_text(
                f"tickTime=2000\ndataDir={data}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
                "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n"
            )
            command = self._java("org.apache.zookeeper.server.ZooKeeperServerMain", str(config), heap="128m")
        with (self.folder / "zookeeper.log").open("ab") as log:
            self._zookeeper_process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

        def is_up() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
                return True
            return False

        wait_until(is_up, what="ZooKeeper listens")
