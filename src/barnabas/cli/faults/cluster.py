"""A local cluster that a test can break and repair. Blocking; one thread at a time.

Faults that brokers carry out themselves (`broker_faults`) go through their control sockets. What operators have means for
(certificates, signals, ZooKeeper) is done by those means.
"""

import json
import signal
import socket
from collections.abc import Mapping

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.broker.runtime.faults import TEST_CLIENT_ID
from barnabas.broker.server.settings import session_config
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.session_config import SessionConfig
from barnabas.cli.faults import asking
from barnabas.cli.faults.asking import Question, T
from barnabas.cli.faults.broker_faults import BrokerFaults
from barnabas.cli.faults.journal import Fault, Journal, Watch
from barnabas.cli.faults.names import check_broker_settings
from barnabas.cli.fork_server import Member
from barnabas.cli.local_cluster import (
    ZOOKEEPER,
    ClusterFailed,
    LocalCluster,
    wait_until,
)
from barnabas.cli.local_settings import SettingValue
from barnabas.client.admin.configs import alter_configs
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.zookeeper.takeover import NoSuchSession, end_session_of

CONTROL_TIMEOUT_S = 60.0
#: The setting of the clients' listener in a secure cluster.
_KEYSTORE = "listener.name.client.ssl.keystore.location"


class FaultyCluster(LocalCluster, BrokerFaults):
    """`LocalCluster` whose brokers take faults. Brokers have the ids 1..N."""

    with_control = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.journal = Journal()
        self._marred = set()
        self._throttled = {}
        self._expired: set[int] = set()

    def _check_names(self, settings: list[str]) -> None:
        check_broker_settings(settings)
        super()._check_names(settings)

    @property
    def _stop_signal(self) -> signal.Signals:
        # The data is not used again, so a clean stop is unnecessary.
        return signal.SIGTERM if self._temporary is None else signal.SIGKILL

    # -- processes ------------------------------------------------------------------------------------------------------

    def kill(self, broker_id: int) -> None:
        """Kill the broker with SIGKILL: no hand-over, no flush."""
        super().kill(broker_id)
        self.journal.note(f"broker {broker_id} was killed")

    def terminate(self, broker_id: int, **options: float) -> int:
        """Stop the broker cleanly; return its exit code."""
        code = super().terminate(broker_id, **options)
        self.journal.note(f"broker {broker_id} was stopped")
        return code

    def start_broker(
        self, broker_id: int, *, config: Mapping[str, SettingValue] | None = None, wait: bool = True
    ) -> None:
        """Start a stopped or killed broker again, with its data and port. Its faults have ended."""
        check_broker_settings(config or ())
        super().start_broker(broker_id, config=config, wait=wait)
        self._marred.discard(broker_id)
        self.journal.note(f"broker {broker_id} was started")

    def kill_all(self) -> None:
        """Kill every process with SIGKILL, including ZooKeeper: a power cut."""
        super().kill_all()
        self.journal.note("everything was killed")

    def start_all(self, *, zookeeper_port: str) -> None:
        """Start everything after `kill_all`, at the same addresses."""
        self._throttled.clear()
        self._expired.clear()
        super().start_all(zookeeper_port=zookeeper_port)

    def _start_brokers(self, dead: list[int]) -> None:
        """Start brokers at once: ZooKeeper may still have their old sessions, and these are ended first."""
        if self.zookeeper is None:
            for broker_id in dead:
                self._end_session(broker_id)
        super()._start_brokers(dead)

    @property
    def zookeeper_members(self) -> list[Member]:
        return self.members(ZOOKEEPER)

    def watch(self) -> Watch:
        """Start recording what the report of a failed test shows."""
        self.journal.clear()
        return Watch(self.journal, {name: member.log for name, member in sorted(self._members.items())})

    def pause(self, broker_id: int) -> None:
        """Send SIGSTOP: connections stay open, but the broker does not answer."""
        self._running(broker_id)
        super().pause(broker_id)
        self.journal.note(f"broker {broker_id} was paused")

    def resume(self, broker_id: int) -> None:
        super().resume(broker_id)
        self.journal.note(f"broker {broker_id} was resumed")

    def wait_until_down(self, broker_id: int, *, timeout_s: float = 60.0) -> None:
        """Wait until the broker's process has ended, whatever the cause."""
        if not self._wait_exit(self.member(broker_id), timeout_s):
            raise TimeoutError(f"broker {broker_id} still runs after {timeout_s:g} s")

    def tear_write(self, broker_id: int) -> None:
        """Write only half of the next batch of records and kill the broker, as in a crash. Call `wait_until_down`, then
        `start_broker`."""
        self._order(broker_id, "will be killed in the middle of a write", do="tear_write")

    # -- faults by other means --------------------------------------------------------------------------------------------

    def expire_certificate(self, broker_id: int) -> None:
        """Make the broker show clients an expired certificate. Existing connections stay open."""
        if self._security is None:
            raise ClusterFailed("there are no certificates: start the cluster with secure=True")
        from barnabas.cli.local_security import EXPIRED

        self._running(broker_id)
        self._alter_keystore(broker_id, AlterOperation.SET, str(self._security.folder / EXPIRED))
        self._expired.add(broker_id)
        self.journal.note(f"broker {broker_id} shows an expired certificate")

    def _alter_keystore(self, broker_id: int, operation: AlterOperation, value: str | None) -> None:
        changes = {_KEYSTORE: (operation, value)}
        self.ask(lambda client: alter_configs(client, ConfigResourceType.BROKER, str(broker_id), changes))

    def expire_session(self, broker_id: int) -> None:
        """End the broker's ZooKeeper session, as after a long pause: until it registers again it does not belong to the
        cluster, and leaders move. Waits until the session has ended."""
        self._running(broker_id)
        if not self._end_session(broker_id):
            raise ClusterFailed(f"broker {broker_id} has no session that could expire")
        self.journal.note(f"the ZooKeeper session of broker {broker_id} expired")

    def _end_session(self, broker_id: int) -> bool:
        """End the session of a broker, even of a dead broker. Returns False if it has none."""
        if self.zookeeper is not None:
            raise ClusterFailed("sessions can be ended in the embedded ZooKeeper only, not in another one")

        config = self._session_config()
        data = self.folder / ZOOKEEPER
        try:
            end_session_of(paths.broker_id(broker_id), config.hosts, data=data, tls=config.tls)
        except NoSuchSession:
            return False
        return True

    def move_controller(self) -> int:
        """Move the controller; return the new one's id. The old one stays a broker, and is paused until it has lost the
        role."""
        if sum(self._can_obey(each) for each in self.broker_ids) < 2:
            raise ClusterFailed("the controller cannot move: it takes two brokers that run")
        before = self.controller()
        other = next(each for each in self.broker_ids if each != before and self._can_obey(each))

        async def delete(session: ZooKeeperSession) -> None:
            await session.delete(paths.CONTROLLER)

        config = self._session_config()
        super().pause(before)
        try:
            asking.run(lambda: _with_session(config, delete))
            wait_until(
                lambda: self.controller(seen_by=other) not in (before, -1), CONTROL_TIMEOUT_S, what="another controller"
            )
        finally:
            super().resume(before)
        after = self.controller(seen_by=other)
        self.journal.note(f"the controller moved from broker {before} to broker {after}")
        return after

    def _session_config(self) -> SessionConfig:
        """Return the settings of a ZooKeeper client with a broker's rights."""
        own = self._security.zookeeper_client_settings() if self._security is not None else {}
        return session_config(BrokerConfig.parse({**own, "zookeeper.connect": self.zookeeper_connect}))

    # -- repairing --------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """End every fault on running brokers, and resume paused ones. Stopped brokers stay down."""
        for broker_id in self.broker_ids:
            if self.member(broker_id).paused:
                self.resume(broker_id)
            if self.member(broker_id).running:
                self.control(broker_id, do="clear")
        if ZOOKEEPER in self._members:
            self.resume_zookeeper()
        while self._expired:
            broker_id = self._expired.pop()
            if self.member(broker_id).running:
                self._alter_keystore(broker_id, AlterOperation.DELETE, None)
        self._end_throttles()

    def repair(self) -> None:
        """Restore the initial state: no faults, all brokers running, clocks right. Topics and records stay."""
        if ZOOKEEPER in self._members and not self._members[ZOOKEEPER].running:
            self._start_zookeeper(self.zookeeper_connect.rpartition(":")[2])
        dead = [each for each in self.broker_ids if not self.member(each).running]
        for broker_id in sorted(self._marred - set(dead)):
            super().terminate(broker_id)
            dead.append(broker_id)
        self._start_brokers(dead)
        self.heal()

    # -- asking -----------------------------------------------------------------------------------------------------------

    def ask(self, question: Question[T], *, of: int | None = None) -> T:
        """Run an operation with a client of the cluster, as an administrator; `of` asks one broker first."""
        settings = {} if self._security is None else self._security.internal_settings()
        brokers = [of] if of is not None else [each for each in self.broker_ids if self._can_obey(each)]
        if not brokers:
            raise ClusterFailed("no broker runs: start one with start_broker(1)")
        where = ",".join(
            self.address(each) if self._security is None else self.listener_address(each, "INTERNAL")
            for each in brokers
        )
        return asking.ask(client_config(where, settings, client_id=TEST_CLIENT_ID), question)

    def controller(self, *, seen_by: int | None = None) -> int:
        """Return the controller's id as a broker (by default any) knows it; -1 if there is none."""

        async def look(client: AsyncClient) -> int:
            await client.topics([])
            return client.image.controller_id

        return self.ask(look, of=seen_by)

    def control(self, broker_id: int, **command: object) -> object:
        """Send one command to a broker's control socket; return its answer."""
        self._running(broker_id)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(CONTROL_TIMEOUT_S)
            try:
                sock.connect(str(self.control_path(broker_id)))
                sock.sendall(json.dumps(command).encode() + b"\n")
                answer = json.loads(sock.makefile("rb").readline() or "{}")
            except OSError as error:
                raise ClusterFailed(f"broker {broker_id} does not take faults: {error}") from error
        if not answer.get("ok"):
            raise ClusterFailed(f"broker {broker_id} refused {command}: {answer.get('error', 'it has ended')}")
        return answer["answer"]

    def _can_obey(self, broker_id: int) -> bool:
        member = self.member(broker_id)
        return member.running and not member.paused

    def _life(self, broker_id: int) -> int | None:
        return self.pid(broker_id) if self._can_obey(broker_id) else None

    def _api_fault(self, broker_id: int, what: str, number: object) -> Fault:
        life = self._life(broker_id)

        def fired() -> int | None:
            if self._life(broker_id) != life:
                return None
            count = self.control(broker_id, do="fired", fault=number)
            assert isinstance(count, int)
            return count

        def end() -> None:
            if self._life(broker_id) == life is not None:
                self.control(broker_id, do="end_api_fault", fault=number)

        return Fault(f"broker {broker_id}: {what}", fired, end)

    def _running(self, broker_id: int) -> None:
        member = self.member(broker_id)
        if not member.running:
            raise ClusterFailed(f"broker {broker_id} is down: start_broker({broker_id}) starts it")
        if member.paused:
            raise ClusterFailed(f"broker {broker_id} is paused: resume({broker_id}) lets it go on")


async def _with_session(config: SessionConfig, work: "asking.Work[ZooKeeperSession, T]") -> T:
    session = ZooKeeperSession(config)
    await session.start()
    try:
        return await work(session)
    finally:
        await session.stop()
