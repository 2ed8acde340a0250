"""A cluster of controller machines around one ZooKeeper in memory: every effect is carried out at once, in order.

A broker stores the requests that it gets, and answers them. Tests look at the stored requests.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.controller.effects import (
    CloseChannel,
    Effect,
    Elected,
    LeaderAndIsrState,
    MetadataState,
    OpenChannel,
    Reply,
    Resigned,
    SendLeaderAndIsr,
    SendStopReplica,
    SendUpdateMetadata,
    StartTimer,
    ZkBatch,
)
from barnabas.broker.controller.events import (
    AlterPartition,
    ApiEvent,
    Event,
    Failure,
    LeaderAndIsrAnswered,
    ProposedIsr,
    SessionExpired,
    SessionRenewed,
    Startup,
    StopReplicaAnswered,
    Timer,
    UpdateMetadataAnswered,
    ZkAnswered,
)
from barnabas.broker.controller.machine import ControllerMachine
from barnabas.broker.controller.settings import ControllerSettings
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Create, Delete, Operation, Result, SetData
from barnabas.broker.zookeeper_client.znodes import (
    BrokerRegistration,
    Endpoint,
    LeaderAndIsr,
    ReplicaAssignment,
    TopicAssignment,
    encode_config,
)
from tests.memory_zookeeper import Fired, MemoryZooKeeper

NOW_MS = 1_700_000_000_000

R = TypeVar("R")


@dataclass
class ModelBroker:
    id: int
    machine: ControllerMachine
    session: int
    epoch: int = -1
    #: The epoch of its first registration.
    incarnation: int | None = None
    #: Highest controller epoch in its requests.
    controller_epoch: int = 0
    hosted: dict[TopicPartition, LeaderAndIsrState] = field(default_factory=dict)
    metadata: dict[TopicPartition, MetadataState] = field(default_factory=dict)
    live_brokers: tuple[int, ...] = ()
    stopped: list[tuple[TopicPartition, bool]] = field(default_factory=list)
    #: Every request that reached the broker.
    received: list[Effect] = field(default_factory=list)
    #: Partitions in a log directory that has failed.
    broken: set[TopicPartition] = field(default_factory=set)
    #: The broker's answer to StopReplica with deletion.
    deletion_error: ErrorCode = ErrorCode.NONE
    timers: dict[Timer, int] = field(default_factory=dict)
    replies: dict[ApiEvent[Any], Any] = field(default_factory=dict)
    elected: list[int] = field(default_factory=list)
    channels: dict[int, int] = field(default_factory=dict)

    def leads(self) -> set[TopicPartition]:
        return {each for each, state in self.hosted.items() if state.leadership.leader == self.id}


class ModelCluster:
    def __init__(self, settings: Callable[[int], ControllerSettings] = ControllerSettings) -> None:
        self.zk = MemoryZooKeeper()
        self._settings = settings
        self.brokers: dict[int, ModelBroker] = {}
        #: Brokers whose requests are lost.
        self.unreachable: set[int] = set()
        #: Answers to StopReplica that are kept for later.
        self.hold_deletions = False
        self.held: list[tuple[int, Event]] = []
        self._is_unseen = False
        self._queue: deque[tuple[int, Event]] = deque()
        self._ids = 0
        self.admin = self.zk.open_session()

    # --- brokers ------------------------------------------------------------------------------------------------------

    def start(self, *ids: int, rack: str | None = None) -> None:
        for broker_id in ids:
            machine = ControllerMachine(self._settings(broker_id), new_topic_id=self.new_id, now_ms=lambda: NOW_MS)
            self.brokers[broker_id] = ModelBroker(broker_id, machine, self.zk.open_session())
            self._register(broker_id, rack)
            self.tell(broker_id, Startup())

    def kill(self, *ids: int) -> None:
        """Kill the processes; their sessions expire."""
        for broker_id in ids:
            broker = self.brokers.pop(broker_id)
            self._notify(self.zk.expire(broker.session))
        self.run()

    def bounce(self, broker_id: int) -> None:
        """Kill a broker and start it again before any controller notices."""
        broker = self.brokers.pop(broker_id)
        fired = self.zk.expire(broker.session)
        machine = ControllerMachine(self._settings(broker_id), new_topic_id=self.new_id, now_ms=lambda: NOW_MS)
        self.brokers[broker_id] = ModelBroker(broker_id, machine, self.zk.open_session())
        self._register(broker_id, None)
        self._notify(fired)
        self.tell(broker_id, Startup())

    def expire_session(self, broker_id: int) -> None:
        """The process lives on, loses its session, and makes a new one."""
        broker = self.brokers[broker_id]
        fired = self.zk.expire(broker.session)
        broker.session = self.zk.open_session()
        self._queue.append((broker_id, SessionExpired()))
        self._notify(fired)
        self.run()
        self._register(broker_id, None)
        self.tell(broker_id, SessionRenewed())

    def unseen(self, happen: Callable[[], object]) -> None:
        """Carry out all of `happen` before any machine gets an event."""
        self._is_unseen = True
        happen()
        self._is_unseen = False
        self.run()

    def pause(self, broker_id: int) -> ModelBroker:
        """Suspend the process: its session expires, and it does not know."""
        broker = self.brokers.pop(broker_id)
        self._notify(self.zk.expire(broker.session))
        self.run()
        return broker

    def wake(self, broker: ModelBroker) -> None:
        """Resume the process, with a new session, before it learns that the old one expired."""
        broker.session = self.zk.open_session()
        self.brokers[broker.id] = broker

    def _register(self, broker_id: int, rack: str | None) -> None:
        broker = self.brokers[broker_id]
        registration = BrokerRegistration(
            broker_id,
            (Endpoint("PLAINTEXT", "PLAINTEXT", f"host{broker_id}", 9092),),
            rack=rack,
            incarnation=broker.incarnation,
        )
        path = paths.broker_id(broker_id)
        executed = self.zk.execute(
            broker.session, [Create(path, ephemeral=True), SetData(path, registration.encode(), 0)]
        )
        assert all(each.ok for each in executed.results), executed
        stat = executed.results[1].stat
        assert stat is not None
        broker.epoch = stat.czxid
        if broker.incarnation is None:
            broker.incarnation = broker.epoch
        self._notify(executed.fired)
        self.run()

    @property
    def controller(self) -> ModelBroker:
        active = [each for each in self.brokers.values() if each.machine.is_active]
        assert len(active) == 1, f"{len(active)} controllers"
        return active[0]

    # --- what an administrator does -----------------------------------------------------------------------------------

    def new_id(self) -> TopicId:
        self._ids += 1
        return TopicId(self._ids.to_bytes(16, "big"))

    def write(self, *operations: Operation) -> tuple[Result, ...]:
        executed = self.zk.execute(self.admin, operations)
        self._notify(executed.fired)
        self.run()
        return executed.results

    def create_topic(self, name: str, *replicas: Iterable[int], settings: Mapping[str, str] | None = None) -> None:
        assignment = {number: ReplicaAssignment(tuple(each)) for number, each in enumerate(replicas)}
        data = TopicAssignment(self.new_id(), assignment).encode()
        config = Create(paths.config_entity(paths.TOPICS, name), encode_config(settings or {}))
        assert all(each.ok for each in self.write(config, Create(paths.topic(name), data)))

    def delete_topic(self, name: str) -> None:
        self.write(Create(paths.delete_topic(name)))

    def configure_topic(self, name: str, settings: Mapping[str, str]) -> None:
        self.write(SetData(paths.config_entity(paths.TOPICS, name), encode_config(settings)))

    def delete(self, path: str) -> None:
        self.write(Delete(path))

    # --- requests to the controller -----------------------------------------------------------------------------------

    def call(self, request: ApiEvent[R], broker_id: int | None = None) -> R | Failure:
        """Ask the controller (or a certain broker) and return the reply."""
        target = self.controller if broker_id is None else self.brokers[broker_id]
        self.tell(target.id, request)
        return target.replies.pop(request)

    def alter_isr(self, partition: TopicPartition, isr: Iterable[int], **changes: int) -> LeaderAndIsr | ErrorCode:
        """Let the leader propose another ISR, with the epochs that it knows."""
        state = self.state(partition)
        leader = self.brokers[state.leader]
        proposed = replace(
            ProposedIsr(state.leader_epoch, tuple(isr), state.partition_epoch, state.recovery),
            **changes,  # type: ignore[arg-type]
        )
        key = (self.controller.machine.context.topic_ids[partition.topic], partition.partition)
        reply = self.call(AlterPartition(leader.id, leader.epoch, {key: proposed}))
        assert not isinstance(reply, Failure)
        return reply.partitions[key] if reply.error is ErrorCode.NONE else reply.error

    # --- looking ------------------------------------------------------------------------------------------------------

    def state(self, partition: TopicPartition) -> LeaderAndIsr:
        """Return the state in ZooKeeper."""
        data, version, _ = self.zk.dump()[paths.partition_state(partition)]
        return LeaderAndIsr.decode(partition, data or b"", version)

    def assignment(self, partition: TopicPartition) -> ReplicaAssignment:
        data = self.zk.get(paths.topic(partition.topic))
        return TopicAssignment.decode(partition.topic, data or b"").partitions[partition.partition]

    def topic_id(self, topic: str) -> TopicId | None:
        return TopicAssignment.decode(topic, self.zk.get(paths.topic(topic)) or b"").topic_id

    def clear_received(self) -> None:
        for broker in self.brokers.values():
            broker.received.clear()
            broker.stopped.clear()

    # --- the machinery ------------------------------------------------------------------------------------------------

    def tell(self, broker_id: int, event: Event) -> None:
        self._queue.append((broker_id, event))
        self.run()

    def run(self) -> None:
        """Run until there is no event and no request left."""
        if self._is_unseen:
            return
        steps = 0
        while self._queue:
            broker_id, event = self._queue.popleft()
            broker = self.brokers.get(broker_id)
            if broker is not None:
                for effect in broker.machine.handle(event):
                    self._carry_out(broker, effect)
                broker.machine.validate()
            steps += 1
            assert steps < 100_000, "the cluster does not come to rest"

    def release_held(self) -> None:
        held, self.held = self.held, []
        self._queue.extend(held)
        self.run()

    def _notify(self, fired: Iterable[Fired]) -> None:
        sessions = {broker.session: broker.id for broker in self.brokers.values()}
        for each in fired:
            if each.session in sessions:
                self._queue.append((sessions[each.session], each.watch))  # type: ignore[arg-type]

    def _carry_out(self, broker: ModelBroker, effect: Effect) -> None:
        match effect:
            case ZkBatch(batch_id, operations, guard):
                executed = self.zk.execute(broker.session, operations, guard)
                # The answer comes before later events.
                self._queue.append((broker.id, ZkAnswered(batch_id, executed.results, executed.moved)))
                self._notify(executed.fired)
            case SendLeaderAndIsr():
                self._deliver(broker, effect.broker_id, effect)
            case SendUpdateMetadata():
                for target in effect.brokers:
                    self._deliver(broker, target, effect)
            case SendStopReplica():
                self._deliver(broker, effect.broker_id, effect)
            case Reply(request, value):
                broker.replies[request] = value
            case StartTimer(timer, delay_ms):
                broker.timers[timer] = delay_ms
            case Elected(epoch):
                broker.elected.append(epoch)
            case OpenChannel(target, epoch):
                broker.channels[target.id] = epoch
            case CloseChannel(target_id):
                broker.channels.pop(target_id, None)
            case Resigned():
                broker.channels.clear()
                broker.timers.clear()

    def _deliver(
        self, sender: ModelBroker, target_id: int, request: SendLeaderAndIsr | SendUpdateMetadata | SendStopReplica
    ) -> None:
        target = self.brokers.get(target_id)
        assert target_id in sender.channels, f"no channel to {target_id}"
        if target is None or target_id in self.unreachable:
            return
        epoch = request.brokers[target_id] if isinstance(request, SendUpdateMetadata) else request.broker_epoch
        error = ErrorCode.NONE
        if request.controller_epoch < target.controller_epoch:
            error = ErrorCode.STALE_CONTROLLER_EPOCH
        elif epoch < target.epoch:
            error = ErrorCode.STALE_BROKER_EPOCH
        else:
            target.controller_epoch = request.controller_epoch
            target.received.append(request)
        self._queue.append((sender.id, self._answer(target, request, error)))

    def _answer(
        self, target: ModelBroker, request: SendLeaderAndIsr | SendUpdateMetadata | SendStopReplica, error: ErrorCode
    ) -> Event:
        if isinstance(request, SendLeaderAndIsr):
            if error is ErrorCode.NONE:
                self._host(target, request)
            errors = {
                each: ErrorCode.KAFKA_STORAGE_ERROR if each in target.broken else ErrorCode.NONE
                for each in request.partitions
            }
            return LeaderAndIsrAnswered(target.id, request.broker_epoch, error, errors)
        if isinstance(request, SendUpdateMetadata):
            if error is ErrorCode.NONE:
                target.live_brokers = tuple(each.id for each in request.live_brokers)
                for partition, state in request.partitions.items():
                    if state.leader == -2:
                        target.metadata.pop(partition, None)
                    else:
                        target.metadata[partition] = state
            return UpdateMetadataAnswered(target.id, error)
        deleted = {}
        for partition, stop in request.partitions.items():
            target.stopped.append((partition, stop.delete))
            if stop.delete:
                deleted[partition] = target.deletion_error
            if stop.delete and target.deletion_error is ErrorCode.NONE:
                target.hosted.pop(partition, None)
        answer = StopReplicaAnswered(target.id, request.broker_epoch, error, deleted)
        if self.hold_deletions:
            self.held.append((self.controller.id, answer))
            return UpdateMetadataAnswered(target.id, ErrorCode.NONE)
        return answer

    def _host(self, target: ModelBroker, request: SendLeaderAndIsr) -> None:
        for partition, state in request.partitions.items():
            known = target.hosted.get(partition)
            if known is None or state.leadership.leader_epoch > known.leadership.leader_epoch:
                target.hosted[partition] = state
