"""A whole cluster in one process: ZooKeeper, brokers, clients, one virtual clock."""

import gc
import logging
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from barnabas.base.errors import ErrorCode, Malformed
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.broker.server import coordinator_log
from barnabas.broker.transactions import ending, initializing, machine, state
from barnabas.broker.zookeeper_client.paths import (
    TOPICS,
    broker_id,
    config_entity,
    delete_topic,
    partition_state,
    topic,
)
from barnabas.broker.zookeeper_client.registration import DuplicateBrokerId
from barnabas.broker.zookeeper_client.zk_errors import ConnectionLost
from barnabas.broker.zookeeper_client.znodes import LeaderAndIsr, ReplicaAssignment, TopicAssignment, decode_config
from barnabas.client.admin.topics import NewTopic, create_topics
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.testing.simulation.network import Network
from barnabas.testing.simulation.process import BrokerProcess, Process, ZooKeeperProcess
from barnabas.testing.simulation.world import World
from tests.simulation import leak_check
from tests.simulation.admin import Administrator
from tests.simulation.after_the_faults import aftermath_clients
from tests.simulation.consumer_protocol_members import ModernReader
from tests.simulation.control_invariants import COORDINATORS
from tests.simulation.descriptor_limits import RepeatedLogLines, deleted_files, descriptor_clients, unowned_logs
from tests.simulation.encounter_clients import QuietWriter, encounter_clients
from tests.simulation.ensemble import FollowerProcess, LeaderProcess
from tests.simulation.faults import Faults
from tests.simulation.foreign_clients import ForeignClient
from tests.simulation.invariants import Invariants
from tests.simulation.late_requests import LateRequester
from tests.simulation.load import (
    CHAIN_GROUP,
    COMING,
    RECKLESS,
    RECREATED,
    Auditor,
    Client,
    GroupReader,
    OffsetKeeper,
    Reader,
    RecordProducer,
    TableKeeper,
    TransactionalProducer,
)
from tests.simulation.oracle import Oracle
from tests.simulation.reader_faults import ReaderFaultClient
from tests.simulation.records import bytes_of, missed_aborts, offset_records
from tests.simulation.recreated_topics import PersistentProducer, RecklessProducer
from tests.simulation.scenario import RELEASES, Scenario, vary
from tests.simulation.timed_client_faults import FLUSHED_PARTITIONS, FLUSHED_SETTINGS, FLUSHED_TOPIC
from tests.simulation.topic_creators import QuotaSetter, TopicCreator
from tests.simulation.transform_load import OUTPUT, Transformer, TwoPhaseProducer
from tests.simulation.unusual_members import StaticMember, UnusualMember
from tests.simulation.zookeeper_intruder import Intruder

#: Settings with which compaction runs within seconds.
EAGER_COMPACTION = {
    "segment.bytes": "1500",
    "segment.ms": "2000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
}
#: Prefix of the host names of a second cluster in the same world.
BESIDE = "m-"
#: Time from the last fault to the end of the audit: sessions expire, logs catch up, transactions time out.
SETTLE_S = 90.0


class TopicMaker(Client):
    """Creates the topics, and ends."""

    async def main(self) -> None:
        while True:
            try:
                async with self.connect() as cluster:
                    others: dict[str, tuple[int, int, dict[str, str]]] = {}
                    if self.cluster.has_coming:
                        others[COMING] = (2, 3, {})
                    if self.cluster.scenario.has_reckless:
                        others[RECKLESS] = (
                            1,
                            2,
                            {
                                "unclean.leader.election.enable": "true",
                                "min.insync.replicas": "1",
                                **self.cluster.reckless_settings,
                            },
                        )
                    for name, (count, factor, configs) in {**self.cluster.topics, **others}.items():
                        try:
                            await create_topics(
                                cluster,
                                [NewTopic(name=name, partitions=count, replication_factor=factor, configs=configs)],
                            )
                        except BrokerRefused as refused:
                            if refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                                raise
                return
            except ClientError as error:
                self.note(f"tries again: {error}")
                await self.pause(0.1, 0.3)


class SimCluster:
    #: Whether topics are mirrors that begin after the first record of their source.
    may_begin_later = False

    def __init__(
        self,
        seed: int,
        scenario: Scenario,
        *,
        without: frozenset[str] = frozenset(),
        beside: "SimCluster | None" = None,
    ) -> None:
        """`without`: kinds of faults, and names of clients, that this run leaves out. `beside`: another cluster; this one
        shares its world and its network.
        """
        self._without = without
        #: Prefix of the names of its hosts.
        self.prefix = "" if beside is None else BESIDE
        brokers = scenario.brokers
        self.scenario = scenario
        self.world = World(seed) if beside is None else beside.world
        self.network = Network(self.world) if beside is None else beside.network
        self.network.usual_s = scenario.network_s
        self.network.calm()
        _set_last_epoch(scenario.last_epoch)
        if scenario.load_step_bytes:
            vars(coordinator_log)["LOAD_STEP_BYTES"] = scenario.load_step_bytes
        self.oracle = Oracle(self.world)
        self.pace_s = scenario.pace_s
        self.has_coming = scenario.has_admin and scenario.has_coming
        self.bootstrap = tuple((f"{self.prefix}b{number}", 9092) for number in range(1, brokers + 1))
        self.topics: dict[str, tuple[int, int, dict[str, str]]] = {
            "orders": (2, 3, {"min.insync.replicas": "2"}),
            "events": (2, 3, {"min.insync.replicas": "2", "segment.bytes": str(scenario.segment_bytes)}),
        }
        if scenario.has_table:
            self.topics["table"] = (1, 3, {"min.insync.replicas": "2", "cleanup.policy": "compact", **EAGER_COMPACTION})
        if scenario.transformers:
            self.topics[OUTPUT.topic] = (1, 3, {"min.insync.replicas": "2"})
        if scenario.ambushers:
            self.topics[FLUSHED_TOPIC] = (FLUSHED_PARTITIONS, 3, dict(FLUSHED_SETTINGS))
        #: Additional settings of the topic that may lose records.
        self.reckless_settings: dict[str, str] = {}
        leader = LeaderProcess if scenario.has_ensemble else ZooKeeperProcess
        self.zookeeper = leader(self.world, self.network, self.prefix)
        #: The other ZooKeeper servers, if ZooKeeper is an ensemble.
        self.followers = [
            FollowerProcess(self.world, self.network, f"{self.zookeeper.name}{number}", self.zookeeper.name)
            for number in ((2, 3) if scenario.has_ensemble else ())
        ]
        if self.followers:
            self.network.is_behind = lambda: not all(each.is_level for each in self.followers)
        self.zookeeper.snap_count = scenario.snap_count
        self.brokers = {
            number: BrokerProcess(self.world, self.network, number, self._settings(number), self.prefix)
            for number in range(1, brokers + 1)
        }
        for number, features in scenario.features.items():
            self.brokers[number].features = features
        for process in (*self.servers, *self.brokers.values()):
            process.on_end = self._ended
        self.clients: list[Client] = []
        self.faults: Faults | None = None
        self._states: dict[TopicPartition, LeaderAndIsr] = {}
        self._states_at = (0, -1)
        #: Path of a state -> (when it was written, its partition, the decoded state); None where the data is not valid.
        self._decoded: dict[str, tuple[tuple[int, int], TopicPartition | None, LeaderAndIsr | None]] = {}
        #: Topic -> (when its znode was written, partition -> replicas).
        self._assignments: dict[str, tuple[tuple[int, int], Mapping[int, ReplicaAssignment]]] = {}
        self.watch = Invariants(self)
        self.oracle.on_offset_shown = self.watch.shown
        self.stranger = Intruder(self, "stranger")
        self.echoes = RepeatedLogLines(self) if scenario.has_scarcity else None
        self._capture = _LogCapture(self)

    @property
    def servers(self) -> list[Process]:
        """Of ZooKeeper."""
        return [self.zookeeper, *self.followers]

    @property
    def zookeeper_hosts(self) -> list[str]:
        return [server.name for server in self.servers]

    @property
    def zookeeper_connect(self) -> str:
        return ",".join(f"{name}:2181" for name in self.zookeeper_hosts)

    @property
    def partitions(self) -> list[TopicPartition]:
        """Return the partitions of the topics that keep every record."""
        return [
            TopicPartition(name, index)
            for name, (count, _, configs) in self.topics.items()
            for index in range(count)
            if "cleanup.policy" not in configs
        ]

    @property
    def table_partitions(self) -> list[TopicPartition]:
        return [TopicPartition("table", 0)] if "table" in self.topics else []

    def _settings(self, number: int) -> dict[str, str]:
        scenario = self.scenario
        return {
            "broker.id": str(number),
            "listeners": f"PLAINTEXT://{self.prefix}b{number}:9092",
            "zookeeper.connect": self.zookeeper_connect,
            "zookeeper.session.timeout.ms": str(scenario.session_timeout_ms),
            "zookeeper.connection.timeout.ms": "60000",
            "log.dirs": "/one,/two",
            "offsets.topic.num.partitions": str(COORDINATORS),
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.num.partitions": str(COORDINATORS),
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
            "min.insync.replicas": "2",
            "replica.lag.time.max.ms": str(scenario.replica_lag_ms),
            "replica.fetch.wait.max.ms": str(min(1_000, scenario.replica_lag_ms // 2)),
            "log.index.size.max.bytes": "8192",
            "replica.socket.timeout.ms": "3000",
            "controller.socket.timeout.ms": "3000",
            "request.timeout.ms": "3000",
            "group.initial.rebalance.delay.ms": "0",
            "group.consumer.min.session.timeout.ms": "1000",
            "group.consumer.session.timeout.ms": "6000",
            "group.consumer.min.heartbeat.interval.ms": "100",
            "group.consumer.heartbeat.interval.ms": "1500",
            "group.consumer.migration.policy": "bidirectional",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
            "controlled.shutdown.max.retries": "1",
            "auto.create.topics.enable": "false",
            "log.cleaner.backoff.ms": "700",
            "log.retention.check.interval.ms": "2000",
            "log.segment.bytes": str(scenario.segment_bytes),
            **scenario.all_brokers,
            **scenario.settings.get(number, {}),
            **scenario.fixed,
        }

    # -- a run ------------------------------------------------------------------------------------------------------------

    def run(self, *, seconds: float | None = None) -> None:
        seconds = self.scenario.seconds if seconds is None else seconds
        with self.captured():
            self.begin()
            self.world.run_until(self.world.now_s + seconds)
            self.calm()
            self.end_clients()
            if self.scenario.has_witnesses:
                self.write_quietly()
                self.work_on()
            self.audit()
            self.rest()

    @contextmanager
    def captured(self) -> Iterator[None]:
        """Add the log lines of its brokers to the story."""
        logging.getLogger("barnabas").addHandler(self._capture)
        try:
            yield
        finally:
            logging.getLogger("barnabas").removeHandler(self._capture)

    def begin(self) -> None:
        faults = self.faults = Faults(
            self, every_s=self.scenario.fault_every_s, weights=self.scenario.faults, without=self._without
        )
        self.fault_names = faults.names
        for server in self.servers:
            server.start()
        self.stranger.start()
        for broker in self.brokers.values():
            broker.start()
        if not self.prefix:
            TopicMaker(self, "maker").start()
        self._start_clients()
        faults.begin()
        self.watch.start()

    def calm(self) -> None:
        assert self.faults is not None
        self.faults.end()
        self.world.note("world", "calm: everything is repaired and runs")
        self._heal()

    def _start_clients(self) -> None:
        scenario = self.scenario
        ambushed = [tp for tp in self.partitions if tp.topic == FLUSHED_TOPIC]
        partitions = [tp for tp in self.partitions if tp.topic != FLUSHED_TOPIC]
        topics = [name for name in self.topics if name != "table"]
        inputs = ["orders"]
        self.clients = [
            *(RecordProducer(self, f"p{number}", partitions) for number in range(scenario.producers)),
            *(TransactionalProducer(self, f"t{number}", partitions) for number in range(scenario.transactional)),
            *(Reader(self, f"r{number}", partitions, isolation=number % 2) for number in range(scenario.readers)),
            *(GroupReader(self, f"g{number}", "group", topics) for number in range(scenario.group_members)),
            *([RecordProducer(self, "one", partitions, acks=1)] if scenario.has_acks_one else []),
            *([OffsetKeeper(self, "keeper", partitions)] if scenario.has_keeper else []),
            *([TableKeeper(self, "table", self.table_partitions)] if scenario.has_table else []),
            *([Administrator(self, "admin")] if scenario.has_admin else []),
            *(ForeignClient(self, f"guest{number}", partitions) for number in range(scenario.guests)),
            *(StaticMember(self, f"s{number}", topics) for number in range(scenario.static_members)),
            *(UnusualMember(self, f"visitor{number}") for number in range(scenario.visitors)),
            *(ReaderFaultClient(self, f"ambusher{number}", ambushed) for number in range(scenario.ambushers)),
            *(ModernReader(self, f"m{number}", "modern", inputs) for number in range(scenario.modern_members)),
            *([ModernReader(self, "mixed", "group", topics, is_alone=False)] if scenario.has_mixed_group else []),
            *(
                Transformer(self, f"c{number}", CHAIN_GROUP, inputs, is_modern=scenario.has_modern_chain)
                for number in range(scenario.transformers)
            ),
            *([TwoPhaseProducer(self, "pledger", partitions)] if scenario.has_pledger else []),
            *([PersistentProducer(self, "again")] if self.has_coming else []),
            *(self.reckless_clients() if scenario.has_reckless else []),
            LateRequester(self, "late", partitions),
            *([TopicCreator(self, "founder"), QuotaSetter(self, "quotas")] if scenario.has_ensemble else []),
            *(encounter_clients(self, partitions) if scenario.has_witnesses else []),
            *(descriptor_clients(self) if scenario.has_scarcity else []),
        ]
        self.clients = [client for client in self.clients if client.name not in self._without]
        for client in self.clients:
            client.start()

    def reckless_clients(self) -> list[Client]:
        """Return the clients of the topic that may lose records."""
        return [RecklessProducer(self, "reckless")]

    def _heal(self) -> None:
        self.network.mend_all()
        for follower in self.followers:
            follower.settle()
        for process in (*self.servers, *self.brokers.values()):
            if process.is_paused:
                process.resume()
            process.spare()
            process.disk_slowness = 1
            if process.storage.faults:
                if isinstance(process, BrokerProcess):
                    process.mend_directories()
                else:
                    process.storage.heal()
                    if process.is_up:
                        process.kill()
            if not process.is_up:
                process.start()

    def end_clients(self) -> None:
        """End the clients: each finishes what it has started. The time is bounded, because a healthy cluster serves."""
        for client in (*self.clients, self.stranger):
            client.end()
        world = self.world
        deadline_s = world.now_s + SETTLE_S
        while any(client.is_up for client in self.clients) and world.now_s < deadline_s:
            world.run_until(world.now_s + 0.5)
        for process in (self.zookeeper, *self.brokers.values()):
            if process.loop is not None:
                process.loop.forget_ended_tasks()
        gc.collect()  # tasks report exceptions that were never retrieved
        late = []
        for client in self.clients:
            if client.is_up and client.is_transactional and self.oracle.is_log_excused(TRANSACTION_STATE_TOPIC):
                client.note("waits for a transaction whose log was lost: as with Kafka, it stays open")
                client.kill()
            elif client.is_up:
                late.append(client.name)
        if late:
            world.violate(
                "a healthy cluster serves in time", f"{', '.join(late)} did not finish within {SETTLE_S:.0f} s"
            )

    def write_quietly(self) -> None:
        """Let a few clients write a record now and then, while nothing else happens."""
        world = self.world
        writer = QuietWriter(self, "quiet", self.partitions)
        writer.start()
        deadline_s = world.now_s + SETTLE_S
        while not writer.is_done and world.now_s < deadline_s:
            world.run_until(world.now_s + 0.5)
        if not writer.is_done:
            world.violate("a healthy cluster serves in time", f"{writer.name} did not finish within {SETTLE_S:.0f} s")

    def work_on(self) -> None:
        """Run the administrators of `after_the_faults.py`, one after the other."""
        world = self.world
        for client in aftermath_clients(self):
            client.start()
            deadline_s = world.now_s + SETTLE_S
            while not client.is_done and world.now_s < deadline_s:
                world.run_until(world.now_s + 0.1)
            if not client.is_done:
                world.violate(
                    "a healthy cluster serves in time", f"{client.name} did not finish within {SETTLE_S:.0f} s"
                )

    def audit(self) -> None:
        """Read all topics and compare them with the oracle."""
        world = self.world
        deadline_s = world.now_s + 2 * SETTLE_S
        groups = [client.group for client in self.clients if isinstance(client, OffsetKeeper)]
        groups += ["modern"] if self.scenario.modern_members else []
        groups += [
            group
            for client in self.clients
            if isinstance(client, ForeignClient | UnusualMember)
            for group in client.groups
        ]
        auditor = Auditor(self, groups)
        auditor.start()
        while not auditor.is_done and world.now_s < deadline_s:
            world.run_until(world.now_s + 0.5)
        if not auditor.is_done:
            world.violate("a healthy cluster serves in time", f"the audit did not end within {2 * SETTLE_S:.0f} s")
        while self.watch.unfinished() and world.now_s < deadline_s:
            world.run_until(world.now_s + 0.5)
        for work in self.watch.unfinished():
            world.violate("a healthy cluster comes to rest", work)

    def rest(self) -> None:
        """Check that the brokers' memory and disks keep nothing of clients, groups and topics that are gone."""
        world = self.world
        deleted = deleted_files(self) if self.scenario.has_scarcity else set()
        for _ in range(3):
            world.run_until(world.now_s + leak_check.QUIET_S)
            left = leak_check.left(self)
            if not left:
                break
            # Preferred leaders may have been elected meanwhile: a coordinator that moves restarts the timers of its members.
        for what in left:
            world.violate("memory returns", what)
        for what in unowned_logs(self) if self.scenario.has_scarcity else ():
            world.violate("every log on disk belongs to a topic and a broker", what)
        if deleted and (remains := sorted(deleted & deleted_files(self))):
            world.violate("deleted files leave the disk", f"{remains} are still there")
        world.run_until(world.now_s)

    def _ended(self, process: Process, error: BaseException | None) -> None:
        if isinstance(process, BrokerProcess) and not process.is_ready and _is_zookeepers(error):
            # A supervisor such as systemd starts it again.
            self.world.after(0.5, lambda: None if process.is_up else process.start())
            return
        self.world.failure = error
        self.world.violate("no process stops by itself", f"{process.name}: {error!r}")

    # -- for faults -------------------------------------------------------------------------------------------------------

    def partition_states(self) -> dict[TopicPartition, LeaderAndIsr]:
        """Return the partition states in ZooKeeper; empty while ZooKeeper is down."""
        if self.zookeeper.server is None or not self.zookeeper.is_serving:
            return {}
        machine = self.zookeeper.server.service.machine
        # A power cut may take writes back, and ZooKeeper then uses their numbers again.
        life = self.zookeeper.lives
        if (life, machine.last_zxid) == self._states_at:
            return self._states
        self._states_at = (life, machine.last_zxid)
        nodes = machine.tree.nodes
        states: dict[TopicPartition, LeaderAndIsr] = {}
        self._states = states
        for path, node in nodes.items():
            if path.startswith("/brokers/topics/") and path.endswith("/state") and node.data:
                written, tp, state = self._decoded.get(path, ((0, -1), None, None))
                if written != (life, node.mzxid):
                    _, _, _, name, _, index, _ = path.split("/")
                    tp, state = TopicPartition(name, int(index)), None
                    with suppress(Malformed):  # the stranger has overwritten this state
                        state = LeaderAndIsr.decode(tp, node.data, node.version)
                    self._decoded[path] = ((life, node.mzxid), tp, state)
                if tp is not None and state is not None:
                    states[tp] = state
        return states

    def is_being_deleted(self, name: str) -> bool:
        """Whether the topic is being deleted: its replicas go one by one, and the deletion waits for brokers that are down."""
        server = self.zookeeper.server
        return server is not None and delete_topic(name) in server.service.machine.tree.nodes

    def settled_replicas(self, tp: TopicPartition) -> tuple[int, ...]:
        """Return the replicas in ZooKeeper of a partition that is not being moved."""
        found = self.assignment_of(tp)
        return () if found is None or found.is_being_reassigned else tuple(found.replicas)

    def assignment_of(self, tp: TopicPartition) -> ReplicaAssignment | None:
        """Return the assignment in ZooKeeper; None while ZooKeeper is down or where the partition does not exist."""
        if self.zookeeper.server is None or not self.zookeeper.is_serving:
            return None
        node = self.zookeeper.server.service.machine.tree.nodes.get(topic(tp.topic))
        if node is None:
            return None
        written, assignments = self._assignments.get(tp.topic, ((0, -1), {}))
        if written != (self.zookeeper.lives, node.mzxid):
            try:
                assignments = TopicAssignment.decode(tp.topic, node.data).partitions
            except Malformed:
                assignments = {}
            self._assignments[tp.topic] = ((self.zookeeper.lives, node.mzxid), assignments)
        return assignments.get(tp.partition)

    def settings_of(self, name: str) -> dict[str, str] | None:
        """Return the topic's settings in ZooKeeper; None while ZooKeeper is down or where the topic has no settings."""
        path = config_entity(TOPICS, name)
        data = self.data_at(path)
        return None if data is None else dict(decode_config(path, data))

    def is_registered(self, broker: int) -> bool:
        """Whether the broker has a registration that a controller can see. (`ControlInvariants` looks for brokers that
        answer and are not registered.)
        """
        server = self.zookeeper.server
        return server is not None and broker_id(broker) in server.service.machine.tree.nodes

    def registered_by(self, broker: int) -> int:
        """Return the session that registered the broker; 0 if the broker is not registered."""
        server = self.zookeeper.server
        node = None if server is None else server.service.machine.tree.nodes.get(broker_id(broker))
        return 0 if node is None else int(node.owner)

    def data_at(self, path: str) -> bytes | None:
        """Return the data of a znode; None if the znode does not exist, or while ZooKeeper is down."""
        return self.data_and_version_at(path)[0]

    def data_and_version_at(self, path: str) -> tuple[bytes | None, int]:
        """Return the data of a znode as `data_at` does, with its version."""
        if self.zookeeper.server is None or not self.zookeeper.is_serving:
            return None, -1
        node = self.zookeeper.server.service.machine.tree.nodes.get(path)
        return (None, -1) if node is None else (bytes(node.data or b""), int(node.version))

    def children_of(self, path: str) -> set[str]:
        """Return the names of the znode's children; an empty set while ZooKeeper is down."""
        if self.zookeeper.server is None or not self.zookeeper.is_serving:
            return set()
        node = self.zookeeper.server.service.machine.tree.nodes.get(path)
        return set() if node is None else set(node.children or ())

    def session_of(self, process: BrokerProcess) -> int:
        session = getattr(process.broker, "session", None)
        return 0 if session is None else int(session.session_id)

    @property
    def topics_with_settings(self) -> list[str]:
        """Return the topics that clients created with settings or have requested with settings."""
        founded = (name for client in self.clients if isinstance(client, TopicCreator) for name in client.topics)
        return [*self.topics, *founded]

    @property
    def keeps_notifications(self) -> bool:
        """Whether every change notification stays until all connected brokers have read it."""
        return "miss_a_change" in self.scenario.faults or self.scenario.has_ensemble

    def is_ignored(self, tp: TopicPartition) -> bool:
        """Whether the usual audits skip the partition: the topic is deleted and created again, or promises nothing."""
        return tp.topic in (COMING, RECKLESS) or tp.topic.startswith(RECREATED)

    def written_at(self, tp: TopicPartition) -> int:
        """Return ZooKeeper's zxid of the last change of the partition's state; -1 while ZooKeeper is down."""
        if self.zookeeper.server is None or not self.zookeeper.is_serving:
            return -1
        node = self.zookeeper.server.service.machine.tree.nodes.get(partition_state(tp))
        return node.mzxid if node is not None else -1

    def was_there(self, broker: int, zxid: int) -> bool:
        """Whether the broker was registered before this change and still is, so that a controller can know it."""
        if self.zookeeper.server is None or not self.zookeeper.is_serving:
            return True
        registration = self.zookeeper.server.service.machine.tree.nodes.get(broker_id(broker))
        return registration is not None and registration.czxid < zxid

    def log_of(self, broker: int, tp: TopicPartition) -> Any:
        process = self.brokers.get(broker)
        if process is None or not process.is_up or process.broker is None:
            return None
        replicas = getattr(process.broker, "replicas", None)
        partition = replicas.hosted.get(tp) if replicas is not None else None
        return partition.log if partition is not None else None

    def controller(self) -> BrokerProcess | None:
        for process in self.brokers.values():
            controller = getattr(process.broker, "controller", None)
            if process.is_up and controller is not None and controller.is_active:
                return process
        return None

    def expire_session(self, process: BrokerProcess) -> bool:
        session = getattr(process.broker, "session", None)
        if session is None or not self.zookeeper.is_serving or self.zookeeper.server is None:
            return False
        return self.zookeeper.expire(session.session_id)

    def vary_settings(self, process: BrokerProcess) -> None:
        """Change some of the broker's settings: brokers may differ, and may differ after a restart."""
        process.settings |= {**vary(self.world.random), **self.scenario.fixed}
        if self.scenario.has_old_brokers:
            process.features = self.world.random.choice(RELEASES)

    # -- for the oracle ---------------------------------------------------------------------------------------------------

    def shown_group_offsets(self, whom: str, group: str, found: Mapping[TopicPartition, int]) -> None:
        """Check the offsets that a client was given for a group: enough replicas must have their records."""
        places: dict[TopicPartition, list[int]] = {}
        for process in self.brokers.values():
            groups = getattr(process.broker, "groups", None)
            # Reading from a failing disk would take its directory offline.
            if process.is_up and groups is not None and not process.storage.faults:
                place = groups.coordinator.topic.place_of(group)
                if place is None:  # the broker still looks it up and serves no client of the group
                    continue
                where = TopicPartition(GROUP_METADATA_TOPIC, place)
                with process.looked_at():
                    known = offset_records(self.log_of(process.id, where), group)
                last = max((known.get(pair, -1) for pair in found.items()), default=-1)
                places.setdefault(where, []).extend([last] if last >= 0 else [])
        for where, offsets in places.items():
            if offsets:
                # A former leader may have the commit at another offset: a commit without an answer was repeated at the next
                # leader.
                self.watch.shown(whom, where, min(offsets))

    def is_in_store(self, tp: TopicPartition, offset: int) -> bool:
        """Whether the object store has the committed record at this offset."""
        return False

    def compare_replicas(self) -> None:
        """Check that all replicas of a partition have the same bytes below the high watermark."""
        for tp in self.partitions:
            logs = {}
            for number, process in self.brokers.items():
                partition = process.broker.replicas.hosted.get(tp) if process.broker is not None else None
                if partition is not None and partition.log is not None:
                    logs[number] = partition.log
            if not logs:
                continue
            for number, log in logs.items():
                with self.brokers[number].looked_at():
                    for txn in missed_aborts(log):
                        self.world.violate(
                            "the index finds every aborted transaction", f"{tp} of broker {number} has {txn} in vain"
                        )
            end = min(log.high_watermark for log in logs.values())
            start = max(log.local_log_start_offset for log in logs.values())
            contents = {}
            for number, log in logs.items():
                with self.brokers[number].looked_at():
                    contents[number] = bytes_of(log, start, end)
            first = next(iter(contents))
            for number, content in contents.items():
                if content != contents[first]:
                    self.world.violate(
                        "replicas are equal below the high watermark",
                        f"{tp} [{start}, {end}) of broker {number} is not that of broker {first}",
                    )


def _set_last_epoch(last_epoch: int) -> None:
    """Set the highest epoch of producers. No run is long enough to use up 32767 epochs."""
    for module in (state, ending, initializing, machine):
        vars(module)["LAST_CLIENT_EPOCH"] = last_epoch


def _is_zookeepers(error: BaseException | None) -> bool:
    """Whether a broker could not start because ZooKeeper is down, or still has the broker's former registration."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_zookeepers(each) for each in error.exceptions)
    return isinstance(error, ConnectionLost | DuplicateBrokerId)


class _LogCapture(logging.Handler):
    """Adds the brokers' log lines to the story. A traceback in the log is a bug that the code only logged."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(logging.INFO)
        self._cluster = cluster

    def emit(self, record: logging.LogRecord) -> None:
        import asyncio

        loop = asyncio._get_running_loop()
        name = getattr(loop, "name", "thread")
        if name.startswith(BESIDE) != bool(self._cluster.prefix):
            return  # a line of the other cluster
        message = record.getMessage()
        self._cluster.world.note(name, f"{record.levelname[0]} {message}")
        self._cluster.watch.heard(name, message)
        if self._cluster.echoes is not None:
            self._cluster.echoes.heard(name, message)
        if self._cluster.faults is not None:
            self._cluster.faults.heard(name, message)
        if record.exc_info and record.exc_info[1] is not None:
            lines = "".join(traceback.format_exception(record.exc_info[1]))
            self._cluster.world.failure = record.exc_info[1]
            self._cluster.world.violate("no exception is left unhandled", f"{name}: {message}\n{lines}")
