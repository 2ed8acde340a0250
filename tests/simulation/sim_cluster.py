"""A whole cluster in one thread: brokers, ZooKeeper, a network that loses, delays and repeats, faults, clients."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from sim_broker import SimBroker
from sim_oracle import HEALS, Oracle
from sim_world import World
from sim_zookeeper import Session, SimZooKeeper

from barnabas.controller.machine import ControllerMachine
from barnabas.controller.settings import ControllerSettings
from barnabas.coordination import paths
from barnabas.coordination.operations import Guard, Operation
from barnabas.coordination.znodes import LeaderAndIsr, ReplicaAssignment, TopicAssignment, decode_controller_epoch
from barnabas.core.errors import ErrorCode
from barnabas.core.ids import TopicId, TopicPartition
from barnabas.replication.control import is_controller_epoch_stale
from barnabas.replication.fetcher_machine import FetcherMachine
from barnabas.replication.machine import PartitionMachine

TOPIC = "orders"


@dataclass(frozen=True)
class Settings:
    """One run's shape. `of` draws one from a seed."""

    brokers: int = 3
    replication_factor: int = 3
    partitions: int = 2
    min_insync_replicas: int = 2
    replica_lag_ms: int = 300
    session_timeout_ms: int = 500
    lost: float = 0.01
    repeated: float = 0.01
    late: float = 0.02
    faults_ms: int = 5000
    #: A broker that lost power is back only after the cluster has noticed: machines boot slower than sessions expire.
    slow_boot: bool = True
    truncates_on_fetch: bool = True

    @staticmethod
    def of(world: World) -> "Settings":
        rng = world.rng
        brokers = rng.choice([3, 3, 3, 4, 5])
        return Settings(
            brokers=brokers,
            replication_factor=rng.choice([2, 3, 3, 3]),
            min_insync_replicas=rng.choice([1, 2, 2]),
            lost=rng.choice([0.0, 0.01, 0.05]),
            repeated=rng.choice([0.0, 0.01, 0.05]),
            late=rng.choice([0.0, 0.02, 0.1]),
            truncates_on_fetch=rng.random() < 0.8,
        )


@dataclass
class Mutation:
    """What a mutant does differently; the default is the real thing."""

    machine: type[PartitionMachine] = PartitionMachine
    fetcher_machine: type[FetcherMachine] = FetcherMachine
    is_stale: Callable[[int, int], bool] = is_controller_epoch_stale


class Cluster:
    def __init__(self, seed: int, settings: Settings | None = None, mutation: Mutation | None = None) -> None:
        self.world = World(seed)
        self.settings = settings or Settings.of(self.world)
        self.mutation = mutation or Mutation()
        self.oracle = Oracle(self.world)
        self.oracle.on_suspicion = self._look_at_isr
        self.zk = SimZooKeeper(self._zk_written)
        self.topic_id = TopicId(b"0123456789abcdef")
        self.is_stale = self.mutation.is_stale
        #: Pairs of brokers (and "zk") that cannot reach each other.
        self.cuts: set[frozenset[object]] = set()
        self.is_calm = False
        self.on_leader: Callable[[TopicPartition, SimBroker], None] = lambda tp, broker: None
        self.partitions = [TopicPartition(TOPIC, number) for number in range(self.settings.partitions)]
        self.brokers = {number: SimBroker(self, number) for number in range(1, self.settings.brokers + 1)}
        self._make_tree()

    def _make_tree(self) -> None:
        for path in paths.PERSISTENT:
            self.zk.make(path)
        ids = list(self.brokers)
        assignments = {}
        for tp in self.partitions:
            shift = tp.partition % len(ids)
            order = ids[shift:] + ids[:shift]
            assignments[tp.partition] = ReplicaAssignment(tuple(order[: self.settings.replication_factor]))
        self.assignments = {tp: assignments[tp.partition].replicas for tp in self.partitions}
        self.zk.make(paths.topic(TOPIC), TopicAssignment(self.topic_id, assignments).encode())

    # --- the machines ----------------------------------------------------------------------------------------------

    def make_controller(self, broker_id: int) -> ControllerMachine:
        return ControllerMachine(
            ControllerSettings(broker_id, leader_imbalance_check_interval_seconds=1),
            new_topic_id=lambda: TopicId(self.world.rng.randbytes(16)),
            now_ms=lambda: self.world.now_ms,
        )

    def make_machine(self, broker: SimBroker, **arguments: Any) -> PartitionMachine:
        return self.mutation.machine(
            local_broker=broker.id,
            replica_lag_time_max_ms=self.settings.replica_lag_ms,
            min_insync_replicas=self.settings.min_insync_replicas,
            **arguments,
        )

    def make_fetcher_machine(self) -> FetcherMachine:
        return self.mutation.fetcher_machine(
            partition_bytes_max=1000, backoff_max_ms=100, truncates_on_fetch=self.settings.truncates_on_fetch
        )

    # --- the network -----------------------------------------------------------------------------------------------

    def _is_cut(self, a: object, b: object) -> bool:
        return bool(self.cuts) and frozenset((a, b)) in self.cuts

    def call(
        self,
        source: SimBroker,
        target: int,
        ask: Callable[[SimBroker, Callable[[Any], None]], None],
        answered: Callable[[Any], None],
    ) -> None:
        """A request and its answer. Either may be lost, late or repeated; who asks must have a time-out."""
        peer = self.brokers[target]
        source_life, peer_life = source.incarnation, peer.incarnation

        def reply(value: object) -> None:
            self._send(target, source.id, lambda: source.deliver(source_life, lambda: answered(value)))

        self._send(source.id, target, lambda: peer.deliver(peer_life, lambda: ask(peer, reply)))

    def client_call(
        self, target: int, ask: Callable[[SimBroker, Callable[[Any], None]], None], answered: Callable[[Any], None]
    ) -> None:
        peer = self.brokers[target]
        peer_life = peer.incarnation

        def reply(value: object) -> None:
            self._send(target, "client", lambda: answered(value))

        self._send("client", target, lambda: peer.deliver(peer_life, lambda: ask(peer, reply)))

    def _send(self, source: object, target: object, arrive: Callable[[], None]) -> None:
        world, settings = self.world, self.settings
        copies = 1
        if source != target and not self.is_calm:
            draw = world.rng.random()
            if draw < settings.lost:
                return
            if draw < settings.lost + settings.repeated:
                copies = 2
        for _ in range(copies):
            delay_ms = world.between(1, 5)
            if not self.is_calm and world.chance(settings.late):
                delay_ms = world.between(20, 400)
            world.after(delay_ms, lambda: None if self._is_cut(source, target) else arrive())

    # --- ZooKeeper -------------------------------------------------------------------------------------------------

    def open_session(self, broker: SimBroker) -> Session:
        world = self.world
        life = broker.incarnation

        def on_watch(watch: Hashable) -> None:
            self._zk_answer(broker, life, session, lambda: broker.feed(watch))  # type: ignore[arg-type]

        session = self.zk.open_session(world.now_ms + self.settings.session_timeout_ms, on_watch)
        session.last_in_ms = session.last_out_ms = world.now_ms

        def heartbeat() -> None:
            if broker.incarnation != life or not broker.is_up or broker.session is not session:
                return
            if not broker.is_paused and not self._is_cut(broker.id, "zk"):
                if not session.is_alive:
                    broker.deliver(life, lambda: broker.session_expired(session))
                    return
                session.expires_ms = world.now_ms + self.settings.session_timeout_ms
            world.after(self.settings.session_timeout_ms // 4, heartbeat)

        def watch_expiry() -> None:
            if world.now_ms >= session.expires_ms:
                if session.is_alive:
                    world.note("zookeeper", "session of broker %s expires", broker.id)
                    self.zk.expire(session)
                    self.broker_died(broker)
            else:
                world.after(session.expires_ms - world.now_ms, watch_expiry)

        world.after(1, heartbeat)
        watch_expiry()
        return session

    def zk_request(
        self,
        broker: SimBroker,
        session: Session,
        operations: tuple[Operation, ...],
        guard: Guard | None,
        answered: Callable[[Any, bool], None],
    ) -> None:
        """In order, and not lost while the session lives: a cut only delays it."""
        life = broker.incarnation

        def arrive() -> None:
            if self._is_cut(broker.id, "zk") and session.is_alive:
                self.world.after(50, arrive)
            elif session.is_alive:
                results, moved = self.zk.execute(session, operations, guard)
                self._zk_answer(broker, life, session, lambda: answered(results, moved))

        session.last_out_ms = max(session.last_out_ms, self.world.now_ms + self.world.between(1, 4))
        self.world.after(session.last_out_ms - self.world.now_ms, arrive)

    def _zk_answer(self, broker: SimBroker, life: int, session: Session, action: Callable[[], None]) -> None:
        def arrive() -> None:
            if self._is_cut(broker.id, "zk"):
                self.world.after(50, arrive)
            else:
                broker.deliver(life, lambda: action() if broker.session is session else None)

        session.last_in_ms = max(session.last_in_ms, self.world.now_ms + self.world.between(1, 4))
        self.world.after(session.last_in_ms - self.world.now_ms, arrive)

    def _zk_written(self, session: int, path: str, data: bytes | None) -> None:
        if path.endswith("/state") and data is not None:
            epoch = self.zk.data_of(paths.CONTROLLER_EPOCH)
            tp = self.partitions[int(path.split("/")[-2])]
            state = LeaderAndIsr.decode(tp, data, 0)
            self.world.note("zookeeper", "%s: %s", path, data.decode())
            self.oracle.writes_state(path, state.controller_epoch, decode_controller_epoch(epoch or b"0"))
            self._who_lives(tp, state.isr, is_decided=True)

    def state_of(self, tp: TopicPartition) -> LeaderAndIsr | None:
        path = paths.partition_state(tp)
        data = self.zk.data_of(path)
        return None if data is None else LeaderAndIsr.decode(tp, data, self.zk.version_of(path))

    def broker_died(self, broker: SimBroker) -> None:
        for tp in broker.disk:
            self._look_at_isr(tp)

    def _look_at_isr(self, tp: TopicPartition) -> None:
        state = self.state_of(tp)
        if state is not None:
            self._who_lives(tp, state.isr, is_decided=False)

    def _who_lives(self, tp: TopicPartition, isr: tuple[int, ...], *, is_decided: bool) -> None:
        """`is_decided`: a controller has just written who leads, and could not ask those that are missing."""
        written = self.zk.mzxid_of(paths.partition_state(tp))
        members = [
            (
                self._lives_since(self.brokers[member], written)
                and not (is_decided and self._is_missing(self.brokers[member])),
                self.brokers[member].disk.get(tp),
            )
            for member in isr
        ]
        self.oracle.isr_is(tp, [(lives, log.records) for lives, log in members if log is not None])

    @staticmethod
    def _lives_since(broker: SimBroker, zxid: int) -> bool:
        """Whether it is still the process that was made a member: of another, nobody can know what it has lost."""
        return broker.is_up and broker.first_epoch is not None and broker.first_epoch <= zxid

    def _is_missing(self, broker: SimBroker) -> bool:
        """It has no session and cannot make one: in Kafka's words it is not alive, and who is there leads rather than wait for
        it. Where machines boot slowly its session has ended before theirs began, so a controller has seen it go."""
        is_held = broker.is_paused or self._is_cut(broker.id, "zk")
        return not self.settings.slow_boot and is_held and self.zk.data_of(paths.broker_id(broker.id)) is None

    def may_boot(self, broker: SimBroker) -> bool:
        """Has a controller missed it? It left every ISR, or, as the last member, at least the lead."""
        states = [self.state_of(tp) for tp in broker.disk]
        return all(
            state is None or broker.id not in state.isr or (state.isr == (broker.id,) and state.leader != broker.id)
            for state in states
        )

    # --- a run -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        from sim_actors import Consumer, Faults, Producer

        for broker in self.brokers.values():
            self.world.after(self.world.between(0, 50), broker.start)
        producer = Producer(self)
        consumers = [Consumer(self, "consumer 1", near=False), Consumer(self, "consumer 2", near=True)]
        faults = Faults(self)
        self.world.run_until(600)
        producer.start()
        for consumer in consumers:
            consumer.start()
        faults.start()
        self.world.run_until(600 + self.settings.faults_ms)
        faults.end()
        producer.end()
        self._await_healing()
        for tp, values in self.oracle.acked.items():
            if tp not in self.oracle.lost:
                state = self.state_of(tp)
                assert state is not None
                records = self.brokers[state.leader].disk[tp].records
                for offset, value in values.items():
                    if records[offset][1] != value:
                        raise self.oracle.broken(
                            HEALS, f"{tp} at {offset}: {records[offset]}, acknowledged was {value}"
                        )

    def _await_healing(self) -> None:
        problem: str | None = ""
        deadline_ms = self.world.now_ms + 15_000
        while problem is not None:
            if self.world.now_ms >= deadline_ms:
                raise self.oracle.broken(HEALS, problem)
            self.world.run_until(self.world.now_ms + 250)
            problem = next((found for tp in self.partitions if (found := self._problem(tp)) is not None), None)

    def _problem(self, tp: TopicPartition) -> str | None:
        """What keeps this partition from being whole."""
        state = self.state_of(tp)
        if state is None or state.leader < 0:
            return f"{tp} has no leader: {state}"
        if set(state.isr) != set(self.assignments[tp]):
            return f"{tp}: isr {state.isr} is not all of {self.assignments[tp]}"
        leader = self.brokers[state.leader]
        if not leader.leads(tp):
            return f"{tp}: broker {state.leader} does not lead"
        records = leader.disk[tp].records
        if tp in self.oracle.lost:
            # A leader that lost its end and went on in the same epoch: nothing tells its followers' records apart.
            return None
        for member in state.isr:
            partition = self.brokers[member].partitions[tp]
            if partition.log.records != records:
                return f"{tp}: broker {member} has {partition.log_end} records, leader {leader.id} {len(records)}"
            if partition.high_watermark != len(records):
                return f"{tp}: high watermark {partition.high_watermark} of {len(records)} at broker {member}"
        return None

    def metadata(self, tp: TopicPartition) -> tuple[int, int] | None:
        """What some broker that is up tells a client: (leader, leader epoch)."""
        candidates = [broker for broker in self.brokers.values() if broker.is_up and tp in broker.metadata]
        return self.world.rng.choice(candidates).metadata[tp] if candidates else None

    def ok(self, code: object) -> bool:
        return code is ErrorCode.NONE
