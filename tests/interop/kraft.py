"""Apache Kafka 4.3.0 in KRaft mode, from Maven, for the console and for links.

Every node is broker and controller at once, so a majority of the nodes must be alive.
"""

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from bench.kafka import free_port, wait_for_port
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.interop.maven import classpath

#: The broker, the tools that Kafka 4 has in a separate jar, and a logging library.
KAFKA = (
    "org.apache.kafka:kafka_2.13:4.3.0",
    "org.apache.kafka:kafka-tools:4.3.0",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
)
STOP_TIMEOUT_S = 60.0
_PROTOCOLS = "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"

_LOG4J = """Configuration:
  Appenders:
    Console:
      name: out
      PatternLayout:
        pattern: "[%d] %p %m (%c)%n"
  Loggers:
    Root:
      level: WARN
      AppenderRef:
        - ref: out
"""


@dataclass(kw_only=True)
class KraftCluster:
    """`with KraftCluster(nodes=3) as kafka: kafka.bootstrap`"""

    nodes: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    #: User -> password: with any user, there is a second listener with SASL/PLAIN.
    users: Mapping[str, str] = field(default_factory=dict)
    heap: str = "384m"
    #: Whether to start quickly; a benchmark wants the compiler that makes it fast later.
    is_short_lived: bool = True

    def __post_init__(self) -> None:
        self.ids = range(1, self.nodes + 1)
        self.folder = Path(tempfile.mkdtemp(prefix="kraft-"))
        self.ports = {node: free_port() for node in self.ids}
        self._login_ports = {node: free_port() for node in self.ids}
        self._controller_ports = {node: free_port() for node in self.ids}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        (self.folder / "log4j2.yaml").write_text(_LOG4J)
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        try:
            for node in self.ids:
                file = self._properties_file(node)
                file.write_text("".join(f"{name}={value}\n" for name, value in self._properties(node).items()))
                make = java(self.heap, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(file))
                subprocess.run(make, check=True, capture_output=True, timeout=120)
                self._launch(node)
            self.wait_ready()
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
        if not os.environ.get("KEEP"):
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        return ",".join(self.address(node) for node in self.ids)

    def login(self, user: str) -> dict[str, str]:
        """Return a client's properties, by Kafka's names."""
        login = f'username="{user}" password="{self.users[user]}"'
        return {
            "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in self._login_ports.values()),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f"org.apache.kafka.common.security.plain.PlainLoginModule required {login};",
        }

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def address(self, node: int) -> str:
        return f"127.0.0.1:{self.ports[node]}"

    def log_dir(self, node: int) -> Path:
        return self.folder / f"data-{node}"

    def log(self, node: int) -> str:
        return self._log_file(node).read_text(errors="replace")

    # -- life of nodes ------------------------------------------------------------------------------------------------

    def start(self, node: int) -> None:
        """Start a stopped node again."""
        self._launch(node)
        self.wait_ready()

    def start_all(self) -> None:
        """Start the nodes that a test has stopped."""
        for node in self.ids:
            if node not in self._processes:
                self._launch(node)
        self.wait_ready()

    def stop(self, node: int) -> None:
        """Send SIGTERM and wait for the controlled shutdown."""
        self._processes[node].terminate()
        self._processes.pop(node).wait(STOP_TIMEOUT_S)

    def kill(self, node: int) -> None:
        process = self._processes.pop(node)
        process.kill()
        process.wait()

    def wait_ready(self, timeout_s: float = 90.0) -> None:
        """Wait until every running node serves and knows the others: an open port is not enough."""
        for node, process in self._processes.items():
            wait_for_port(self.ports[node], process, self._log_file(node), timeout_s)
        deadline_s = time.monotonic() + timeout_s
        for node in self._processes:
            admin = AdminClient({"bootstrap.servers": self.address(node), "log_level": 0})
            while True:
                with contextlib.suppress(KafkaException):
                    if len(admin.list_topics(timeout=10).brokers) >= len(self._processes):
                        break
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"node {node} does not see all nodes\n{self.log(node)[-3000:]}")
                time.sleep(0.1)

    # -- processes ----------------------------------------------------------------------------------------------------

    def _launch(self, node: int) -> None:
        log4j = f"-Dlog4j2.configurationFile={self.folder}/log4j2.yaml"
        command = java(
            self.heap, "kafka.Kafka", str(self._properties_file(node)), options=[log4j], short=self.is_short_lived
        )
        with self._log_file(node).open("ab") as log:
            self._processes[node] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def _properties_file(self, node: int) -> Path:
        return self.folder / f"node-{node}.properties"

    def _log_file(self, node: int) -> Path:
        return self.folder / f"node-{node}.log"

    def _properties(self, node: int) -> dict[str, str]:
        replicas = min(3, self.nodes)
        controllers = {each: f"127.0.0.1:{port}" for each, port in self._controller_ports.items()}
        return {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": _PROTOCOLS,
            "listeners": f"PLAINTEXT://{self.address(node)},CONTROLLER://{controllers[node]}",
            "controller.quorum.voters": ",".join(f"{each}@{where}" for each, where in controllers.items()),
            "log.dirs": str(self.log_dir(node)),
            "offsets.topic.replication.factor": str(replicas),
            "offsets.topic.num.partitions": "6",
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.num.partitions": "6",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "2",
            "group.initial.rebalance.delay.ms": "0",
            "broker.session.timeout.ms": "6000",
            **(self._login_properties(node) if self.users else {}),
            **self.config,
        }

    def _login_properties(self, node: int) -> dict[str, str]:
        plain, controller = (
            f"PLAINTEXT://{self.address(node)}",
            f"CONTROLLER://127.0.0.1:{self._controller_ports[node]}",
        )
        users = " ".join(f'user_{user}="{password}"' for user, password in self.users.items())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            "listeners": f"{plain},SASL_PLAINTEXT://127.0.0.1:{self._login_ports[node]},{controller}",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required {users};",
            # Nodes and tests connect anonymously, and ANONYMOUS may do everything.
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }


def java(heap: str, main: str, *arguments: str, options: list[str] | None = None, short: bool = True) -> list[str]:
    """Return the command that runs a class of Kafka 4.3.0."""
    tuned = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"] if short else ["-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
    return ["java", f"-Xmx{heap}", *tuned, *(options or ()), "-cp", classpath(*KAFKA), main, *arguments]


@contextmanager
def kraft() -> Iterator[str]:
    """Yield the address of a cluster with one node."""
    with KraftCluster(nodes=1, heap="512m") as cluster:
        yield cluster.bootstrap
