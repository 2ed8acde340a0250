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
from tests.simulation import leak_check
from tests.simulation.admin import Administrator
from tests.simulation.after_the_faults import latter
from tests.simulation.consumer_protocol_members import ModernReader
from tests.simulation.control_invariants import COORDINATORS
from tests.simulation.descriptor_limits import Echoes, needy, nobodys, what_is_deleted
from tests.simulation.encounter_clients import QuietWriter, witnesses
from tests.simulation.ensemble import FollowerProcess, LeaderProcess
from tests.simulation.faults import Faults
from tests.simulation.foreign_clients import Guest
from tests.simulation.invariants import Watch
from tests.simulation.late_requests import Latecomer
from tests.simulation.load import (
    CHAIN_GROUP,
    COMING,
    RECKLESS,
    REMADE,
    Auditor,
    Client,
    GroupReader,
    OffsetKeeper,
    Reader,
    RecordProducer,
    TableKeeper,
    TransactionalProducer,
)
from tests.simulation.network import Network
from tests.simulation.oracle import Oracle
from tests.simulation.process import BrokerProcess, Process, ZooKeeperProcess
from tests.simulation.reader_faults import Reading
from tests.simulation.records import bytes_of, missed_aborts, offset_records
from tests.simulation.recreated_topics import PersistentProducer, RecklessProducer
from tests.simulation.scenario import RELEASES, Scenario, vary
from tests.simulation.timed_client_faults import AMBUSHED, AMBUSHED_PARTITIONS, AMBUSHED_SETTINGS
from tests.simulation.topic_creators import Founder, QuotaSetter
from tests.simulation.transform_load import OUTPUT, Pledger, Transformer
from tests.simulation.unusual_members import StaticMember, Visitor
from tests.simulation.world import World
from tests.simulation.zookeeper_intruder import Stranger

#: So that compaction runs within seconds.
EAGER_COMPACTION = {
    "segment.bytes": "1500",
    "segment.ms": "2000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
}
#: What names of hosts begin with in a cluster that is beside another.
BESIDE = "m-"
#: From the last fault to the end of the audit: sessions expire, logs catch up, transactions time out.
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
    #: Its topics are mirrors that do not begin with the first record of their source.
    may_begin_later = False

    def __init__(
        self,
        seed: int,
        scenario: Scenario,
        *,
        without: frozenset[str] = frozenset(),
        beside: "SimCluster | None" = None,
    ) -> None:
        """`without`: kinds of faults, and names of clients, that this run does without. `beside`: another cluster, in whose
        world and network this one is."""
        self._without = without
        #: Of the names of its hosts.
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
            self.topics[AMBUSHED] = (AMBUSHED_PARTITIONS, 3, dict(AMBUSHED_SETTINGS))
        #: Of the topic that may lose records.
        self.reckless_settings: dict[str, str] = {}
        leader = LeaderProcess if scenario.has_ensemble else ZooKeeperProcess
        self.zookeeper = leader(self.world, self.network, self.prefix)
        #: The other servers of ZooKeeper, where it is an ensemble.
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
        #: Path of a state -> when it was written, of which partition, and what it says; None where that makes no sense.
        self._decoded: dict[str, tuple[tuple[int, int], TopicPartition | None, LeaderAndIsr | None]] = {}
        #: Topic -> (when its znode was written, partition -> its replicas).
        self._assignments: dict[str, tuple[tuple[int, int], Mapping[int, ReplicaAssignment]]] = {}
        self.watch = Watch(self)
        self.oracle.on_told = self.watch.told
        self.stranger = Stranger(self, "stranger")
        self.echoes = Echoes(self) if scenario.has_scarcity else None
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
        """Those of the topics that keep every record."""
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
        """What its brokers log is part of the story."""
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
        self.world.note("world", "calm: everything is mended and runs")
        self._heal()

    def _start_clients(self) -> None:
        scenario = self.scenario
        ambushed = [tp for tp in self.partitions if tp.topic == AMBUSHED]
        partitions = [tp for tp in self.partitions if tp.topic != AMBUSHED]
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
            *(Guest(self, f"guest{number}", partitions) for number in range(scenario.guests)),
            *(StaticMember(self, f"s{number}", topics) for number in range(scenario.static_members)),
            *(Visitor(self, f"visitor{number}") for number in range(scenario.visitors)),
            *(Reading(self, f"ambusher{number}", ambushed) for number in range(scenario.ambushers)),
            *(ModernReader(self, f"m{number}", "modern", inputs) for number in range(scenario.modern_members)),
            *([ModernReader(self, "mixed", "group", topics, is_alone=False)] if scenario.has_mixed_group else []),
            *(
                Transformer(self, f"c{number}", CHAIN_GROUP, inputs, is_modern=scenario.has_modern_chain)
                for number in range(scenario.transformers)
            ),
            *([Pledger(self, "pledger", partitions)] if scenario.has_pledger else []),
            *([PersistentProducer(self, "again")] if self.has_coming else []),
            *(self.reckless_clients() if scenario.has_reckless else []),
            Latecomer(self, "late", partitions),
            *([Founder(self, "founder"), QuotaSetter(self, "quotas")] if scenario.has_ensemble else []),
            *(witnesses(self, partitions) if scenario.has_witnesses else []),
            *(needy(self) if scenario.has_scarcity else []),
        ]
        self.clients = [client for client in self.clients if client.name not in self._without]
        for client in self.clients:
            client.start()

    def reckless_clients(self) -> list[Client]:
        """Of the topic that may lose records."""
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
        """They finish what they have begun. Bounded: a healthy cluster serves."""
        for client in (*self.clients, self.stranger):
            client.end()
        world = self.world
        deadline_s = world.now_s + SETTLE_S
        while any(client.is_up for client in self.clients) and world.now_s < deadline_s:
            world.run_until(world.now_s + 0.5)
        for process in (self.zookeeper, *self.brokers.values()):
            if process.loop is not None:
                process.loop.forget_ended_tasks()
        gc.collect()  # a task whose exception nobody took says so now
        late = []
        for client in self.clients:
            if client.is_up and client.is_transactional and self.oracle.is_log_excused(TRANSACTION_STATE_TOPIC):
                client.note("waits for a transaction whose log was lost: as with Kafka, nobody will end it")
                client.kill()
            elif client.is_up:
                late.append(client.name)
        if late:
            world.violate(
                "a healthy cluster serves in time", f"{', '.join(late)} did not finish within {SETTLE_S:.0f} s"
            )

    def write_quietly(self) -> None:
        """Nothing else happens but a record now and then."""
        world = self.world
        writer = QuietWriter(self, "quiet", self.partitions)
        writer.start()
        deadline_s = world.now_s + SETTLE_S
        while not writer.is_done and world.now_s < deadline_s:
            world.run_until(world.now_s + 0.5)
        if not writer.is_done:
            world.violate("a healthy cluster serves in time", f"{writer.name} did not finish within {SETTLE_S:.0f} s")

    def work_on(self) -> None:
        """Administrators work, one after the other."""
        world = self.world
        for client in latter(self):
            client.start()
            deadline_s = world.now_s + SETTLE_S
            while not client.is_done and world.now_s < deadline_s:
                world.run_until(world.now_s + 0.1)
            if not client.is_done:
                world.violate(
                    "a healthy cluster serves in time", f"{client.name} did not finish within {SETTLE_S:.0f} s"
                )

    def audit(self) -> None:
        """Everything is read and compared."""
        world = self.world
        deadline_s = world.now_s + 2 * SETTLE_S
        groups = [client.group for client in self.clients if isinstance(client, OffsetKeeper)]
        groups += ["modern"] if self.scenario.modern_members else []
        groups += [group for client in self.clients if isinstance(client, Guest | Visitor) for group in client.groups]
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
        """Nothing of what was done is left in memory."""
        world = self.world
        deleted = what_is_deleted(self) if self.scenario.has_scarcity else set()
        for _ in range(3):
            world.run_until(world.now_s + leak_check.QUIET_S)
            left = leak_check.left(self)
            if not left:
                break
            # Preferred leaders may have been elected meanwhile: a coordinator that moves gives its members their time anew.
        for what in left:
            world.violate("memory returns", what)
        for what in nobodys(self) if self.scenario.has_scarcity else ():
            world.violate("a log has its topic and its broker", what)
        if deleted and (remains := sorted(deleted & what_is_deleted(self))):
            world.violate("what is deleted leaves the disk", f"{remains} are still there")
        world.run_until(world.now_s)

    def _ended(self, process: Process, error: BaseException | None) -> None:
        if isinstance(process, BrokerProcess) and not process.is_ready and _is_zookeepers(error):
            # Its supervisor starts it again, as systemd would.
            self.world.after(0.5, lambda: None if process.is_up else process.start())
            return
        self.world.failure = error
        self.world.violate("nobody stops by itself", f"{process.name}: {error!r}")

    # -- for faults -------------------------------------------------------------------------------------------------------

    def partition_states(self) -> dict[TopicPartition, LeaderAndIsr]:
        """What ZooKeeper has; empty while it is away."""
        if self.zookeeper.server is None or not self.zookeeper.is_serving:
            return {}
        machine = self.zookeeper.server.service.machine
        # What a power cut took was written under numbers that are used again.
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
                    with suppress(Malformed):  # a stranger has been there
                        state = LeaderAndIsr.decode(tp, node.data, node.version)
                    self._decoded[path] = ((life, node.mzxid), tp, state)
                if tp is not None and state is not None:
                    states[tp] = state
        return states

    def is_being_deleted(self, name: str) -> bool:
        """Of a topic: its replicas go one by one, and it waits for brokers that are away."""
        server = self.zookeeper.server
        return server is not None and delete_topic(name) in server.service.machine.tree.nodes

    def settled_replicas(self, tp: TopicPartition) -> tuple[int, ...]:
        """The replicas of a partition that is not being moved, as ZooKeeper has them."""
        found = self.assignment_of(tp)
        return () if found is None or found.is_being_reassigned else tuple(found.replicas)

    def assignment_of(self, tp: TopicPartition) -> ReplicaAssignment | None:
        """As ZooKeeper has it; None while it is away, or where there is none."""
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
        """Of a topic, as ZooKeeper has them; None while it is away, or where there are none."""
        path = config_entity(TOPICS, name)
        data = self.data_at(path)
        return None if data is None else dict(decode_config(path, data))

    def is_registered(self, broker: int) -> bool:
        """Whether a controller can know of it. (Who answers and is not registered is looked at by `watch_control`.)"""
        server = self.zookeeper.server
        return server is not None and broker_id(broker) in server.service.machine.tree.nodes

    def registered_by(self, broker: int) -> int:
        """The session that has registered a broker; 0 if none has."""
        server = self.zookeeper.server
        node = None if server is None else server.service.machine.tree.nodes.get(broker_id(broker))
        return 0 if node is None else int(node.owner)

    def data_at(self, path: str) -> bytes | None:
        """What ZooKeeper has there; None if nothing, or while it is away."""
        return self.data_and_version_at(path)[0]

    def data_and_version_at(self, path: str) -> tuple[bytes | None, int]:
        """Likewise, with the version of the data."""
        if self.zookeeper.server is None or not self.zookeeper.is_serving:
            return None, -1
        node = self.zookeeper.server.service.machine.tree.nodes.get(path)
        return (None, -1) if node is None else (bytes(node.data or b""), int(node.version))

    def children_of(self, path: str) -> set[str]:
        """Names of znodes below another; none while ZooKeeper is away."""
        if self.zookeeper.server is None or not self.zookeeper.is_serving:
            return set()
        node = self.zookeeper.server.service.machine.tree.nodes.get(path)
        return set() if node is None else set(node.children or ())

    def session_of(self, process: BrokerProcess) -> int:
        session = getattr(process.broker, "session", None)
        return 0 if session is None else int(session.session_id)

    @property
    def topics_with_settings(self) -> list[str]:
        """Those that clients have made with settings of their own, or have asked for."""
        founded = (name for client in self.clients if isinstance(client, Founder) for name in client.topics)
        return [*self.topics, *founded]

    @property
    def keeps_notifications(self) -> bool:
        """Whether every notification of a change is there until all brokers that are connected have read it."""
        return "miss_a_change" in self.scenario.faults or self.scenario.has_ensemble

    def is_ignored(self, tp: TopicPartition) -> bool:
        """Deleted and made again by the same name, so that others look at what was acknowledged, or without any promise."""
        return tp.topic in (COMING, RECKLESS) or tp.topic.startswith(REMADE)

    def written_at(self, tp: TopicPartition) -> int:
        """ZooKeeper's number of the last change of the partition's state; -1 while ZooKeeper is away."""
        if self.zookeeper.server is None or not self.zookeeper.is_serving:
            return -1
        node = self.zookeeper.server.service.machine.tree.nodes.get(partition_state(tp))
        return node.mzxid if node is not None else -1

    def was_there(self, broker: int, zxid: int) -> bool:
        """Whether a broker has been registered since before this change: what a controller can know."""
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
        """Brokers need not have the same settings, nor the same ones after a restart."""
        process.settings |= {**vary(self.world.random), **self.scenario.fixed}
        if self.scenario.has_old_brokers:
            process.features = self.world.random.choice(RELEASES)

    # -- for the oracle ---------------------------------------------------------------------------------------------------

    def told_of_offsets(self, whom: str, group: str, found: Mapping[TopicPartition, int]) -> None:
        """A client was told of a group's offsets: their records are on as many replicas as any record that it reads."""
        places: dict[TopicPartition, list[int]] = {}
        for process in self.brokers.values():
            groups = getattr(process.broker, "groups", None)
            # To read from a disk that fails would take its directory offline.
            if process.is_up and groups is not None and not process.storage.faults:
                place = groups.coordinator.topic.place_of(group)
                if place is None:  # it is being looked up, and so it serves nobody
                    continue
                where = TopicPartition(GROUP_METADATA_TOPIC, place)
                with process.looked_at():
                    known = offset_records(self.log_of(process.id, where), group)
                last = max((known.get(pair, -1) for pair in found.items()), default=-1)
                places.setdefault(where, []).extend([last] if last >= 0 else [])
        for where, offsets in places.items():
            if offsets:
                # A former leader may have it somewhere else: a commit that it did not answer was repeated at the next one.
                self.watch.told(whom, where, min(offsets))

    def is_in_store(self, tp: TopicPartition, offset: int) -> bool:
        """Whether an object store has the committed record at this offset."""
        return False

    def compare_replicas(self) -> None:
        """Below the high watermark all replicas of a partition have the same bytes."""
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
                            "a search finds every aborted transaction", f"{tp} of broker {number} has {txn} in vain"
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
    """Of producers. No run is long enough to use up 32767 of them."""
    for module in (state, ending, initializing, machine):
        vars(module)["LAST_CLIENT_EPOCH"] = last_epoch


def _is_zookeepers(error: BaseException | None) -> bool:
    """A broker that cannot start because ZooKeeper is away, or still knows its former life."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_zookeepers(each) for each in error.exceptions)
    return isinstance(error, ConnectionLost | DuplicateBrokerId)


class _LogCapture(logging.Handler):
    """What brokers log is part of the story; a traceback in it is a bug that somebody only wrote down."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(logging.INFO)
        self._cluster = cluster

    def emit(self, record: logging.LogRecord) -> None:
        import asyncio

        loop = asyncio._get_running_loop()
        who = getattr(loop, "name", "thread")
        if who.startswith(BESIDE) != bool(self._cluster.prefix):
            return  # of the other cluster
        message = record.getMessage()
        self._cluster.world.note(who, f"{record.levelname[0]} {message}")
        self._cluster.watch.heard(who, message)
        if self._cluster.echoes is not None:
            self._cluster.echoes.heard(who, message)
        if self._cluster.faults is not None:
            self._cluster.faults.heard(who, message)
        if record.exc_info and record.exc_info[1] is not None:
            lines = "".join(traceback.format_exception(record.exc_info[1]))
            self._cluster.world.failure = record.exc_info[1]
            self._cluster.world.violate("no exception is left unhandled", f"{who}: {message}\n{lines}")
