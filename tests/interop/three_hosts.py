"""Three brokers and Apache's ensemble of three, each process on a host of its own, with TLS, passwords and ACLs.

`ThreeHosts` starts and stops them; `network` cuts them off. This process reaches all of them as a client would.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from barnabas.client.config import ClientConfig, client_config
from barnabas.testing import wait_until
from barnabas.wire.auth.authority import LocalAuthority
from tests.interop import maven
from tests.interop.network import Network
from tests.interop.zookeeper.zk_apache import ZOOKEEPER
from tests.scenarios.zookeeper.zk_process import four_letter_word

BROKERS: Final = {1: "b1", 2: "b2", 3: "b3"}
MEMBERS: Final = {1: "z1", 2: "z2", 3: "z3"}
PORT: Final = 9092
METRICS_PORT: Final = 9404
#: Sparse: a disk that has room, as `doctor` sees it.
DISK_BYTES: Final = 4 << 30


class ThreeHosts:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.network = Network((*BROKERS.values(), *MEMBERS.values()))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._authority = LocalAuthority.create("bad days")
        #: Settings of a broker in place of the usual ones.
        self.settings: dict[int, dict[str, str]] = {broker: {} for broker in BROKERS}
        #: What a broker's command begins with.
        self.wrapped: dict[int, list[str]] = {broker: [] for broker in BROKERS}
        self._mounted: list[Path] = []
        self._disks = 0
        #: Size of each broker's log when it was started last.
        self._started_at: dict[int, int] = {}

    def __enter__(self) -> Self:
        self.network.__enter__()
        try:
            for member in MEMBERS:
                self.start_member(member)
            wait_until(lambda: sorted(map(self.mode, MEMBERS)) == ["follower", "follower", "leader"], 120)
            for broker in BROKERS:
                self.issue_certificate(broker)
                self._mount(broker)
                self.start(broker)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(30)
        for folder in self._mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False, timeout=60)
        self.network.__exit__(kind, error, trace)

    # -- ZooKeeper --------------------------------------------------------------------------------------------------------

    @property
    def zookeeper(self) -> str:
        return ",".join(f"{self.network.addresses[host]}:2181" for host in MEMBERS.values())

    def start_member(self, member: int) -> None:
        address = self.network.addresses
        data = self._folder / f"zookeeper-{member}"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(str(member))
        peers = "".join(f"server.{each}={address[host]}:2888:3888\n" for each, host in MEMBERS.items())
        config = data / "zoo.cfg"
        config.write_text(
            f"dataDir={data}\nclientPort=2181\nclientPortAddress={address[MEMBERS[member]]}\ntickTime=1000\ninitLimit=20\n"
            f"syncLimit=5\nmaxClientCnxns=0\nadmin.enableServer=false\n{peers}"
        )
        logback = data / "logback.xml"
        logback.write_text('<configuration><root level="OFF"/></configuration>')
        command = ["java", "-Xmx96m", f"-Dlogback.configurationFile={logback}", "-cp", maven.classpath(*ZOOKEEPER)]
        self._run(MEMBERS[member], [*command, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)])

    def mode(self, member: int) -> str:
        try:
            lines = four_letter_word(2181, b"srvr", host=self.network.addresses[MEMBERS[member]]).splitlines()
        except OSError:
            return ""
        return next((line.removeprefix("Mode: ") for line in lines if line.startswith("Mode: ")), "")

    def followers(self) -> list[int]:
        return [member for member in MEMBERS if self.mode(member) == "follower"]

    # -- brokers ----------------------------------------------------------------------------------------------------------

    def start(self, broker: int) -> None:
        self._write_settings(broker)
        log = self._folder / f"{BROKERS[broker]}.log"
        self._started_at[broker] = log.stat().st_size if log.exists() else 0
        command = [*self.wrapped[broker], sys.executable, "-m", "barnabas", "broker", str(self._properties(broker))]
        self._run(BROKERS[broker], command)

    def wait_ready(self, broker: int) -> None:
        """Wait until the broker serves after its last start."""
        log = self._folder / f"{BROKERS[broker]}.log"
        wait_until(
            lambda: b"ready broker=" in log.read_bytes()[self._started_at[broker] :], 120, what=f"broker {broker}"
        )

    def log(self, host: str) -> str:
        return (self._folder / f"{host}.log").read_text()

    def data(self, broker: int) -> Path:
        """The directory of a broker's logs, the root of a small disk of its own."""
        return self._folder / f"disk-{broker}"

    def other_data(self, broker: int) -> Path:
        """A second directory, so that a broker survives the loss of the first."""
        return self._folder / f"other-{broker}"

    def issue_certificate(self, broker: int, *, days: int = 365) -> None:
        address = self.network.addresses[BROKERS[broker]]
        (self._folder / "authority.pem").write_text(self._authority.certificate_pem)
        self._key_store(broker).write_text(self._authority.issue(f"broker-{broker}", [address], days=days))

    def stop(self, host: str, *, kill: bool = False) -> None:
        process = self._processes.pop(host)
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
            return
        process.kill()
        process.wait(30)

    def signal(self, host: str, number: signal.Signals) -> None:
        self._processes[host].send_signal(number)

    def is_running(self, host: str) -> bool:
        return host in self._processes and self._processes[host].poll() is None

    def client(self) -> ClientConfig:
        bootstrap = ",".join(f"{self.network.addresses[host]}:{PORT}" for host in BROKERS.values())
        return client_config(bootstrap, {**self._client_settings("secret"), "bootstrap.servers": bootstrap})

    def librdkafka(self) -> dict[str, str]:
        return {
            "bootstrap.servers": ",".join(f"{self.network.addresses[host]}:{PORT}" for host in BROKERS.values()),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": "secret",
            "ssl.ca.location": str(self._folder / "authority.pem"),
        }

    def metrics(self) -> list[str]:
        return [f"{self.network.addresses[host]}:{METRICS_PORT}" for host in BROKERS.values()]

    def _client_settings(self, password: str) -> dict[str, str]:
        login = (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="{password}";'
        )
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": login,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._folder / "authority.pem"),
        }

    def _write_settings(self, broker: int) -> None:
        address = self.network.addresses[BROKERS[broker]]
        self._properties(broker).write_text(
            "".join(
                f"{name}={value}\n"
                for name, value in {
                    "broker.id": str(broker),
                    "zookeeper.connect": f"{self.zookeeper}/kafka",
                    "zookeeper.set.acl": "true",
                    "barnabas.zookeeper.digest": "kafka:secret",
                    "listeners": f"SASL_SSL://{address}:{PORT}",
                    "security.inter.broker.protocol": "SASL_SSL",
                    "sasl.enabled.mechanisms": "PLAIN",
                    "sasl.mechanism.inter.broker.protocol": "PLAIN",
                    "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas("secret"),
                    "ssl.keystore.type": "PEM",
                    "ssl.keystore.location": str(self._key_store(broker)),
                    "ssl.truststore.type": "PEM",
                    "ssl.truststore.location": str(self._folder / "authority.pem"),
                    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
                    "super.users": "User:admin",
                    "barnabas.metrics.host": "0.0.0.0",
                    "barnabas.metrics.port": str(METRICS_PORT),
                    "log.dirs": f"{self.data(broker)},{self.other_data(broker)}",
                    "default.replication.factor": "3",
                    "min.insync.replicas": "2",
                    "offsets.topic.num.partitions": "3",
                    "transaction.state.log.num.partitions": "3",
                    **self.settings[broker],
                }.items()
            )
        )

    def _properties(self, broker: int) -> Path:
        return self._folder / f"broker-{broker}.properties"

    def _key_store(self, broker: int) -> Path:
        return self._folder / f"broker-{broker}.pem"

    def replace_disk(self, broker: int) -> None:
        """Mount an empty disk in place of the former one of a broker that does not run."""
        subprocess.run(["umount", "-l", str(self.data(broker))], check=True, timeout=60)
        self._mounted.remove(self.data(broker))
        self._mount(broker)

    def _mount(self, broker: int) -> None:
        folder = self.data(broker)
        folder.mkdir(parents=True, exist_ok=True)
        self.other_data(broker).mkdir(exist_ok=True)
        self._disks += 1
        image = self._folder / f"disk-{self._disks}.image"
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True, timeout=60)
        done = subprocess.run(
            ["mount", "-o", "loop", str(image), str(folder)], capture_output=True, text=True, check=False, timeout=60
        )
        if done.returncode:
            pytest.skip(f"cannot mount a file system: {done.stderr.strip()}")
        self._mounted.append(folder)
        (folder / "lost+found").rmdir()

    def _run(self, host: str, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        with (self._folder / f"{host}.log").open("ab") as out:
            self._processes[host] = subprocess.Popen(
                self.network.command(host, command),
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )


def jaas(password: str) -> str:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return f'{module} required username="admin" password="{password}" user_admin="{password}";'


def fresh_folder() -> Path:
    """A folder outside of /tmp, which doctor would warn of. Git ignores it."""
    folder = maven.ROOT / f"bad-days-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
