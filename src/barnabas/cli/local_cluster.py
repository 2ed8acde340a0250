"""A cluster on this machine: ZooKeeper and brokers as processes, started by the launcher. `barnabas up` and
`barnabas.testing` are built on it.

Blocking; one thread at a time. Brokers have the ids 1..N. A restarted broker keeps its id, port and data.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Self, TypeVar

from barnabas.base.config.properties import format_properties
from barnabas.base.errors import BarnabasError
from barnabas.cli.fork_server import ForkServer, Member, fork_server
from barnabas.cli.local_settings import SettingValue, setting_texts, suiting_settings, warn_of_unknown

if TYPE_CHECKING:
    from barnabas.cli.local_security import LocalSecurity

T = TypeVar("T")
#: Limit for the start of one process; a busy machine may need most of it.
READY_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 30.0
BROKER: Final = "broker"
ZOOKEEPER: Final = "zookeeper"
REGISTRY: Final = "schema-registry"
CONSOLE: Final = "console"
TABLES: Final = "tables"
_REGISTRY_SETTING: Final = "barnabas.schema.registry.url"


class ClusterFailed(BarnabasError):
    """A process did not start, or ended by itself; the message has the end of its log."""


@dataclass(kw_only=True)
class LocalCluster:
    """`with LocalCluster(brokers=3) as cluster: cluster.bootstrap`"""

    brokers: int = 3
    host: str = "127.0.0.1"
    #: The host that clients connect to; None means `host`.
    advertised_host: str | None = None
    #: The port of broker 1; the other brokers use the next ones. 0: any free port.
    port: int = 0
    #: None: a temporary folder that is deleted with the cluster.
    data: Path | None = None
    #: `HOST:PORT/path` of an existing ZooKeeper; None: the embedded one.
    zookeeper: str | None = None
    #: Settings of every broker; they override those chosen for a local cluster.
    config: Mapping[str, SettingValue] = field(default_factory=dict)
    #: Settings of single brokers, by id.
    broker_config: Mapping[int, Mapping[str, SettingValue]] = field(default_factory=dict)
    #: More options of the embedded ZooKeeper.
    zookeeper_options: tuple[str, ...] = ()
    #: TLS, users and ACLs; `client_settings` then has what clients need.
    secure: bool = False

    #: A schema registry beside the brokers, and its port. 0: any free port.
    schema_registry: bool = False
    schema_registry_port: int = 0

    #: A console beside the brokers, and its port. 0: any free port.
    console: bool = False
    console_port: int = 0
    #: A Spark beside the brokers that writes topics to tables.
    tables: bool = False
    #: Each broker shows its internals at its `inside_url`; with a console they always do.
    inside: bool = False

    #: Brokers open a socket that injects faults; `barnabas.testing` sets this.
    with_control: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._temporary: Path | None = None
        self._launcher: ForkServer | None = None
        self._members: dict[str, Member] = {}
        self._ports: dict[int, int] = {}
        self._inside_urls: dict[int, str] = {}
        self._security: LocalSecurity | None = None
        self._config = setting_texts(self.config)
        self._own_config = {
            self._checked_id(broker_id): setting_texts(own) for broker_id, own in self.broker_config.items()
        }
        self._check_names([*self.config, *(name for own in self.broker_config.values() for name in own)])

    def _check_names(self, settings: list[str]) -> None:
        warn_of_unknown(settings)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all processes and wait until they are ready, or raise `ClusterFailed`."""
        self._launcher = fork_server()
        if self.data is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="barnabas-"))
            self._launcher.remove_at_end(self._temporary)
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.secure:
            from barnabas.cli.local_security import LocalSecurity  # slow: imports a client and cryptography

            self.folder.chmod(0o700)  # other users must not read records, logs and ZooKeeper's data
            self._security = LocalSecurity.prepare(
                self.folder / "security", self._client_host, with_expired=self.with_control
            )
        if self.zookeeper is None:
            self._start_zookeeper()
        for broker_id in self.broker_ids:
            self._launch_broker(broker_id)
        for broker_id in self.broker_ids:
            self.wait_ready(broker_id)
        if self._security is not None and self.brokers:
            self._let_clients_in(self._security)
        if self.schema_registry:
            self._start_schema_registry()
        if self.console:
            self._start_console()
        if self.tables:
            self._start_tables()

    def _let_clients_in(self, security: "LocalSecurity") -> None:
        asyncio.run(security.provision(self.listener_address(1, "INTERNAL")))
        security.write_properties(self.bootstrap)
        for broker_id in self.broker_ids:
            address = self.address(broker_id)
            wait_until(lambda address=address: security.is_known_at(address), what=f"users at {address}")  # type: ignore[misc]

    def stop(self) -> None:
        """Stop what runs beside the brokers, then the brokers, which hand over their partitions, then ZooKeeper.

        Removes a temporary folder.
        """
        if self._launcher is None:
            return
        for kind in (TABLES, CONSOLE, REGISTRY, BROKER, ZOOKEEPER):
            self._end([member for member in self._members.values() if member.kind == kind])
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._launcher.is_removed(self._temporary)
            self._temporary = None
        self._launcher = None

    def _end(self, members: list[Member]) -> None:
        assert self._launcher is not None
        for member in members:
            # A requested member may not have a process yet; it gets one soon.
            self._launcher.wait(lambda member=member: member.pid or member.exit_code is not None, STOP_TIMEOUT_S)  # type: ignore[misc]
            self._signal(member, self._stop_signal)
            self._signal(member, signal.SIGCONT)
        for member in members:
            if not self._wait_exit(member, STOP_TIMEOUT_S):
                self._signal(member, signal.SIGKILL)
                self._wait_exit(member, STOP_TIMEOUT_S)

    @property
    def _stop_signal(self) -> signal.Signals:
        return signal.SIGTERM

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        folder = self.data or self._temporary
        if folder is None:
            raise ClusterFailed("the cluster was not started")
        return folder

    @property
    def broker_ids(self) -> range:
        return range(1, self.brokers + 1)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{self._client_host}:{self._ports[broker_id]}" for broker_id in self.broker_ids)

    @property
    def _client_host(self) -> str:
        return self.advertised_host or self.host

    def address(self, broker_id: int) -> str:
        self.member(broker_id)
        return f"{self._client_host}:{self._ports[broker_id]}"

    def listener_address(self, broker_id: int, listener: str) -> str:
        """Return a listener's address from the broker's ready line."""
        fields = _fields(self.member(broker_id))
        addresses = dict(listener.split("://", 1) for listener in fields["listeners"].split(","))
        return addresses[listener]

    def inside_url(self, broker_id: int) -> str:
        """Return the address at which a broker shows its internals (below `/inside`) and its metrics; a restart keeps it."""
        self.member(broker_id)
        if broker_id not in self._inside_urls:
            raise ClusterFailed("brokers do not show their inside: start the cluster with inside=True")
        return self._inside_urls[broker_id]

    def client_settings(self, user: str = "client") -> dict[str, str]:
        """Return the settings with which the Java client, the tools and barnabas's client can connect. `user` is client, or
        admin, which may do everything. Without `secure` there are no users, and the address is enough."""
        secured = self._security.client_settings(user) if self._security is not None else {}
        return {"bootstrap.servers": self.bootstrap, **secured}

    def librdkafka_settings(self, user: str = "client") -> dict[str, str]:
        """Return the same for confluent-kafka and other clients that use librdkafka."""
        secured = self._security.librdkafka_settings(user) if self._security is not None else {}
        return {"bootstrap.servers": self.bootstrap, **secured}

    def command_config(self, user: str = "client") -> Path | None:
        """Return the file with these settings, for `--command-config`; None without `secure`."""
        return self._security.properties_file(user) if self._security is not None else None

    @property
    def schema_registry_url(self) -> str:
        """Return the registry's URL. Clients take it as `schema.registry.url`."""
        if REGISTRY not in self._members:
            raise ClusterFailed("the cluster has no schema registry: start it with schema_registry=True")
        return (self._members[REGISTRY].ready_line or "").removeprefix("ready schema-registry=")

    @property
    def console_url(self) -> str:
        """Return the console's URL for a browser."""
        if CONSOLE not in self._members:
            raise ClusterFailed("the cluster has no console: start it with console=True")
        return (self._members[CONSOLE].ready_line or "").removeprefix("ready console=")

    @property
    def zookeeper_connect(self) -> str:
        if self.zookeeper is not None:
            return self.zookeeper
        line = self._members[ZOOKEEPER].ready_line or ""
        return line.removeprefix("ready zookeeper=")

    def log_dir(self, broker_id: int) -> Path:
        return self.folder / f"broker-{broker_id}"

    def control_path(self, broker_id: int) -> Path:
        return self.folder / f"broker-{broker_id}.control"

    def log(self, broker_id: int) -> str:
        """Return the broker's log so far."""
        return self.member(broker_id).log.read_text(errors="replace")

    def member(self, broker_id: int) -> Member:
        self._checked_id(broker_id)
        member = self._members.get(f"broker-{broker_id}")
        if member is None:
            raise ClusterFailed("the cluster was not started")
        return member

    def _checked_id(self, broker_id: int) -> int:
        if broker_id not in self.broker_ids:
            there_are = {0: "none", 1: "broker 1 alone"}.get(self.brokers, f"brokers 1 to {self.brokers}")
            raise ValueError(f"there is no broker {broker_id!r}: this cluster has {there_are}")
        return broker_id

    def pid(self, broker_id: int) -> int:
        return self.member(broker_id).pid

    def members(self, kind: str) -> list[Member]:
        return [member for member in self._members.values() if member.kind == kind]

    def settings_of(self, broker_id: int) -> Mapping[str, str]:
        """The settings that a broker starts with."""
        return self._properties(broker_id)

    def log_dirs(self, broker_id: int) -> list[Path]:
        return [Path(each.strip()) for each in self._properties(broker_id)["log.dirs"].split(",")]

    # -- faults -------------------------------------------------------------------------------------------------------

    def kill_all(self) -> None:
        """kill -9 for every process, ZooKeeper's too: a power cut."""
        members = list(self._members.values())
        for member in members:
            self._signal(member, signal.SIGKILL)
        for member in members:
            self._wait_exit(member, STOP_TIMEOUT_S)

    def start_all(self, *, zookeeper_port: str) -> None:
        """After `kill_all`, at the same addresses."""
        self._start_zookeeper(zookeeper_port)
        self._start_brokers(list(self.broker_ids))

    def _start_brokers(self, dead: list[int]) -> None:
        """All at once, and then what runs beside them."""
        for broker_id in dead:
            self.start_broker(broker_id, wait=False)
        for broker_id in dead:
            self.wait_ready(broker_id)
        if self.schema_registry and not self._members[REGISTRY].running:
            self._start_schema_registry()
        if self.console and not self._members[CONSOLE].running:
            self._start_console()
        if self.tables and not self._members[TABLES].running:
            self._start_tables()

    def kill(self, broker_id: int) -> None:
        """Kill the broker with SIGKILL: no hand-over, no flush."""
        self._signal(self.member(broker_id), signal.SIGKILL)
        self._wait_exit(self.member(broker_id), STOP_TIMEOUT_S)

    def terminate(self, broker_id: int, *, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stop the broker cleanly; return its exit code."""
        member = self.member(broker_id)
        self._signal(member, signal.SIGTERM)
        if not self._wait_exit(member, timeout_s):
            raise ClusterFailed(f"broker {broker_id} did not stop within {timeout_s} s\n{_tail(member.log)}")
        assert member.exit_code is not None
        return member.exit_code

    def pause(self, broker_id: int) -> None:
        self._signal(self.member(broker_id), signal.SIGSTOP)
        self.member(broker_id).paused = True

    def resume(self, broker_id: int) -> None:
        self._signal(self.member(broker_id), signal.SIGCONT)
        self.member(broker_id).paused = False

    def start_broker(
        self, broker_id: int, *, config: Mapping[str, SettingValue] | None = None, wait: bool = True
    ) -> None:
        """Start a stopped or killed broker again, with its data and port."""
        if self.member(broker_id).running:
            raise ClusterFailed(f"broker {broker_id} is running")
        self._launch_broker(broker_id, config)
        if wait:
            self.wait_ready(broker_id)

    def restart(self, broker_id: int) -> None:
        self.terminate(broker_id)
        self.start_broker(broker_id)

    def restart_zookeeper(self, *, kill: bool = False, away_s: float = 0) -> None:
        """Restart the embedded ZooKeeper with its data and port: sessions survive."""
        port = self.zookeeper_connect.rpartition(":")[2]
        self.stop_zookeeper(kill=kill)
        time.sleep(away_s)
        self._start_zookeeper(port)

    def stop_zookeeper(self, *, kill: bool = False) -> None:
        member = self._members[ZOOKEEPER]
        self._signal(member, signal.SIGKILL if kill else signal.SIGTERM)
        if not self._wait_exit(member, STOP_TIMEOUT_S):
            raise ClusterFailed(f"ZooKeeper did not stop\n{_tail(member.log)}")

    def pause_zookeeper(self) -> None:
        self._signal(self._members[ZOOKEEPER], signal.SIGSTOP)

    def resume_zookeeper(self) -> None:
        self._signal(self._members[ZOOKEEPER], signal.SIGCONT)

    # -- processes ----------------------------------------------------------------------------------------------------

    def _launch(self, name: str, kind: str, arguments: list[str]) -> Member:
        assert self._launcher is not None
        member = self._members[name] = Member(name, kind, arguments, self.folder / f"{name}.log")
        self._launcher.start(member)
        return member

    def _start_zookeeper(self, port: str = "0") -> None:
        # On loopback whatever the brokers' host is, because only they use it, from this machine.
        arguments = ["--host", "127.0.0.1", "--data", str(self.folder / ZOOKEEPER), "--max-client-cnxns", "1000"]
        if self._temporary is not None:
            arguments.append("--no-force-sync")  # the folder is temporary: a power cut makes it useless anyway
        if self._security is None:
            arguments += ["--port", port]
        else:
            arguments.insert(0, str(self._security.write_zookeeper_files(port)))
        self._wait_member_ready(self._launch(ZOOKEEPER, ZOOKEEPER, [*arguments, *self.zookeeper_options]))

    def _as_client(self, user: str = "client") -> list[str]:
        """Return the arguments of a command that runs beside the brokers as their client."""
        file = self.command_config(user)
        return ["--bootstrap-server", self.bootstrap, *([] if file is None else ["--command-config", str(file)])]

    def _start_schema_registry(self) -> None:
        former = self._members.get(REGISTRY)
        port = self.schema_registry_port if former is None else self.schema_registry_url.rpartition(":")[2]
        arguments = [*self._as_client(), "--host", self.host, "--port", str(port)]
        if self.advertised_host is not None:
            arguments += ["--advertised-host", self.advertised_host]
        self._wait_member_ready(self._launch(REGISTRY, REGISTRY, arguments))
        if former is None and _REGISTRY_SETTING not in self._config:
            self._set_registry_on_brokers(self.schema_registry_url)

    def _set_registry_on_brokers(self, registry_url: str) -> None:
        """Set the registry's URL on the brokers, for topics with `barnabas.value.schema.validation`; wait until all have it."""
        from barnabas.base.words import AlterOperation, ConfigResourceType
        from barnabas.client.admin.configs import alter_configs, describe_configs
        from barnabas.client.blocking import BlockingClient
        from barnabas.client.config import client_config

        kind = ConfigResourceType.BROKER
        with BlockingClient(client_config(self.bootstrap, self.client_settings("admin"))) as client:

            def is_known_at(broker_id: int) -> bool:
                resource = (kind, str(broker_id))
                entries = client.run(describe_configs(client.core, [resource]))[resource]
                return any(entry.name == _REGISTRY_SETTING and entry.value == registry_url for entry in entries)

            client.run(alter_configs(client.core, kind, "", {_REGISTRY_SETTING: (AlterOperation.SET, registry_url)}))
            for broker_id in self.broker_ids:
                wait_until(lambda: is_known_at(broker_id), what=f"{_REGISTRY_SETTING} at broker {broker_id}")  # noqa: B023

    def _start_console(self) -> None:
        """Start the console on loopback, whatever the brokers' host is. With users, it asks them to sign in and uses their
        rights."""
        arguments = [*self._as_client(), "--port", str(self.console_port), "--read-write"]
        if self.secure:
            arguments.append("--sign-in")
        arguments += ["--inside", ",".join(self.inside_url(broker_id) for broker_id in self.broker_ids)]
        if self.schema_registry:
            arguments += ["--schema-registry", self.schema_registry_url]
        self._wait_member_ready(self._launch(CONSOLE, CONSOLE, arguments))

    def _start_tables(self) -> None:
        """Start the tables without waiting: Spark starts slowly, and tables catch up."""
        self._launch(TABLES, TABLES, ["run", *self._as_client("admin")])

    def _launch_broker(self, broker_id: int, config: Mapping[str, SettingValue] | None = None) -> None:
        file = self.folder / f"broker-{broker_id}.properties"
        settings = format_properties({**self._properties(broker_id), **setting_texts(config or {})})
        if self._security is None:
            file.write_text(settings)
        else:
            self._security.write_secret(file, settings)  # it has the secret that the brokers share with ZooKeeper
        arguments = [str(file)]
        if self.with_control:
            self.control_path(broker_id).unlink(missing_ok=True)
            arguments += ["--control", str(self.control_path(broker_id))]
        self._launch(f"broker-{broker_id}", BROKER, arguments)

    @property
    def min_insync_replicas(self) -> int:
        """Return the value for topics without their own setting."""
        return int(self._config.get("min.insync.replicas", "2" if self.brokers >= 3 else "1"))

    def _properties(self, broker_id: int) -> dict[str, str]:
        """Return settings for a cluster of this size on one machine; the user's settings override them."""
        port = self._ports.get(broker_id) or (self.port + broker_id - 1 if self.port else 0)
        return {
            **suiting_settings(self.brokers, min_insync_replicas=self.min_insync_replicas),
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://{self.host}:{port}",
            "zookeeper.connect": self.zookeeper_connect,
            "log.dirs": str(self.log_dir(broker_id)),
            **self._inside_properties(broker_id),
            **self._security_properties(port),
            **self._advertised(port),
            **self._config,
            **self._own_config.get(broker_id, {}),
        }

    def _inside_properties(self, broker_id: int) -> dict[str, str]:
        if not (self.inside or self.console):
            return {}
        port = self._inside_urls.get(broker_id, ":0").rpartition(":")[2]
        return {"barnabas.metrics.port": port, "barnabas.inside.enable": "true"}

    def _advertised(self, port: int) -> dict[str, str]:
        if self.advertised_host is None:
            return {}
        if self._security is None:
            return {"advertised.listeners": f"PLAINTEXT://{self.advertised_host}:{port}"}
        return {"advertised.listeners": f"CLIENT://{self.advertised_host}:{port},INTERNAL://{self.advertised_host}:0"}

    def _security_properties(self, port: int) -> dict[str, str]:
        if self._security is None:
            return {}
        return self._security.broker_settings(self.host, port, own_zookeeper=self.zookeeper is None)

    def wait_ready(self, broker_id: int, timeout_s: float = READY_TIMEOUT_S) -> None:
        member = self.member(broker_id)
        self._wait_member_ready(member, timeout_s)
        fields = _fields(member)
        self._ports[broker_id] = int(fields["listeners"].split(",")[0].rpartition(":")[2])
        if self.inside or self.console:
            self._inside_urls[broker_id] = fields["metrics"]

    def _wait_member_ready(self, member: Member, timeout_s: float = READY_TIMEOUT_S) -> None:
        assert self._launcher is not None
        self._launcher.wait(lambda: member.ready_line is not None or member.exit_code is not None, timeout_s)
        if member.ready_line is None:
            what = f"is not up after {timeout_s} s"
            if member.exit_code is not None:
                what = f"ended with {member.exit_code}"
            elif self._launcher.ended:
                what = "was not started: the launcher has ended; see its message on standard error"
            raise ClusterFailed(f"{member.name} {what}\n{_tail(member.log)}")

    def _wait_exit(self, member: Member, timeout_s: float) -> bool:
        assert self._launcher is not None
        return self._launcher.wait(lambda: member.exit_code is not None, timeout_s)

    @staticmethod
    def _signal(member: Member, number: signal.Signals) -> None:
        if member.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, number)


def _fields(member: Member) -> dict[str, str]:
    """Parse the fields of a broker's ready line."""
    return dict(part.split("=", 1) for part in (member.ready_line or "").split()[1:])


def _tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log, beginning with the line that says why the process ended, if there is one."""
    if not log.exists():
        return "(no log)"
    last = log.read_text(errors="replace").splitlines()[-lines:]
    reasons = [index for index, line in enumerate(last) if "] CRITICAL " in line]
    return "\n".join(last[reasons[-1] :] if reasons else last)


def wait_until(condition: Callable[[], T], timeout_s: float = 60.0, *, what: str = "the condition") -> T:
    """Poll until the condition is true, for changes outside of this process; return its first true value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {timeout_s:g} s")
        time.sleep(0.02)
    return value
