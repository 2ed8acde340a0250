"""A model cluster with delays: ZooKeeper's answers, watches and requests come late and interleaved.

Ordered things keep their order: the answers and watches of one session, and the requests of one channel. A seed decides the
rest.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable

from barnabas.base.ids import TopicPartition
from barnabas.broker.controller.effects import (
    CloseChannel,
    Effect,
    OpenChannel,
    Resigned,
    SendLeaderAndIsr,
    SendStopReplica,
    SendUpdateMetadata,
    ZkBatch,
)
from barnabas.broker.controller.events import (
    AlterPartition,
    AlterReassignments,
    BrokerRefuses,
    ControlledShutdown,
    ControllerRefuses,
    ElectionType,
    ElectLeaders,
    Event,
    ProposedIsr,
    SessionExpired,
    SessionRenewed,
    ZkAnswered,
    ZkLost,
)
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Create, SetData
from barnabas.broker.zookeeper_client.znodes import (
    LeaderAndIsr,
    ReplicaAssignment,
    TopicAssignment,
    encode_log_dir_event,
)
from tests.memory_zookeeper import Fired
from tests.unit.broker.controller.model_cluster import ModelBroker, ModelCluster

Request = SendLeaderAndIsr | SendUpdateMetadata | SendStopReplica
BROKERS = (1, 2, 3, 4)


class ChaosCluster(ModelCluster):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        #: Events for each broker's machine, in order.
        self.inbox: dict[int, deque[Event]] = {}
        self.batches: dict[int, deque[ZkBatch]] = {}
        #: (controller, broker) -> requests in flight, with the incarnation for which they are meant.
        self.wires: dict[tuple[int, int], deque[Request]] = {}
        self.asleep: dict[int, ModelBroker] = {}
        self.topics: dict[str, int] = {}
        self._made = 0
        #: (topic id, partition, leader epoch) -> leader: there must never be two.
        self.leaders: dict[tuple[object, int, int], int] = {}
        self.latest: dict[tuple[object, int], LeaderAndIsr] = {}
        #: The next step of each broker that lost its session and has no new one yet.
        self.renewals: set[int] = set()

    # --- late effects -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Nothing happens without a call of `step`."""
        while self._queue:
            broker_id, event = self._queue.popleft()
            self.inbox.setdefault(broker_id, deque()).append(event)

    def _carry_out(self, broker: ModelBroker, effect: Effect) -> None:
        match effect:
            case ZkBatch():
                self.batches.setdefault(broker.id, deque()).append(effect)
            case SendLeaderAndIsr() | SendStopReplica():
                self._post(broker, effect.broker_id, effect)
            case SendUpdateMetadata():
                for target in effect.brokers:
                    self._post(broker, target, effect)
            case CloseChannel(target_id):
                self.wires.pop((broker.id, target_id), None)
                super()._carry_out(broker, effect)
            case OpenChannel(target):
                self.wires.pop((broker.id, target.id), None)
                super()._carry_out(broker, effect)
            case Resigned():
                for key in [key for key in self.wires if key[0] == broker.id]:
                    del self.wires[key]
                super()._carry_out(broker, effect)
            case _:
                super()._carry_out(broker, effect)

    def _post(self, broker: ModelBroker, target: int, request: Request) -> None:
        assert target in broker.channels, f"no channel to {target}"
        self.wires.setdefault((broker.id, target), deque()).append(request)

    def _notify(self, fired: Iterable[Fired]) -> None:
        super()._notify(fired)
        self.run()

    def _execute(self, broker_id: int) -> None:
        batch = self.batches[broker_id].popleft()
        broker = self.brokers.get(broker_id)
        if broker is None:
            return
        if broker_id in self.renewals:
            self.inbox.setdefault(broker_id, deque()).append(ZkLost(batch.batch_id))
            return
        operations = batch.operations
        if self.random.random() < 0.05:
            # The connection broke after the operation was carried out, and the session repeats it.
            first = self.zk.execute(broker.session, operations, batch.guard)
            self._observe(batch)
            self._notify(first.fired)
        executed = self.zk.execute(broker.session, operations, batch.guard)
        self._observe(batch)
        self._notify(executed.fired)
        self.inbox.setdefault(broker_id, deque()).append(ZkAnswered(batch.batch_id, executed.results, executed.moved))

    def _observe(self, batch: ZkBatch) -> None:
        """Check that there is one leader per epoch, and that epochs only rise."""
        for operation in batch.operations:
            if not isinstance(operation, Create | SetData) or not operation.path.endswith("/state"):
                continue
            names = operation.path.split("/")
            topic, number = names[3], int(names[5])
            if not self.zk.exists(operation.path) or not self.zk.exists(paths.topic(topic)):
                continue
            identity = self.topic_id(topic)
            state = self.state(TopicPartition(topic, number))
            key = (identity, number, state.leader_epoch)
            assert self.leaders.setdefault(key, state.leader) == state.leader, f"two leaders of {key}"
            before = self.latest.get((identity, number))
            if before is not None:
                assert state.leader_epoch >= before.leader_epoch
                assert state.controller_epoch >= before.controller_epoch
            self.latest[(identity, number)] = state

    def _deliver_next(self, key: tuple[int, int]) -> None:
        controller, target = key
        request = self.wires[key].popleft()
        sender = self.brokers.get(controller)
        if sender is not None and target in self.brokers:
            self._deliver(sender, target, request)
            self.run()

    def _handle(self, broker_id: int) -> None:
        event = self.inbox[broker_id].popleft()
        broker = self.brokers.get(broker_id)
        if broker is not None:
            for effect in broker.machine.handle(event):
                self._carry_out(broker, effect)
            broker.machine.validate()

    # --- steps --------------------------------------------------------------------------------------------------------

    def moves(self) -> list[Callable[[], None]]:
        """Return the events that could happen next."""
        found: list[Callable[[], None]] = []
        found += [lambda each=each: self._execute(each) for each, todo in self.batches.items() if todo]  # type: ignore[misc]
        found += [lambda each=each: self._handle(each) for each, todo in self.inbox.items() if todo]  # type: ignore[misc]
        found += [lambda key=key: self._deliver_next(key) for key, todo in self.wires.items() if todo]  # type: ignore[misc]
        found += [lambda each=each: self._renew(each) for each in self.renewals]  # type: ignore[misc]
        return found

    def step(self) -> bool:
        moves = self.moves()
        if not moves:
            return False
        self.random.choice(moves)()
        return True

    def settle(self) -> None:
        for _ in range(200_000):
            if not self.step():
                return
        raise AssertionError("the cluster does not come to rest")

    # --- misfortunes --------------------------------------------------------------------------------------------------

    def misfortune(self) -> None:
        live = sorted(self.brokers)
        choices: list[Callable[[], None]] = [
            self._fail_directory,
            self._create,
            self._delete,
            self._shrink_or_grow,
            self._reassign,
            self._elect,
        ]
        if len(live) > 1:
            choices += [lambda: self._crash(self.random.choice(live)), lambda: self._expire(self.random.choice(live))]
            choices += [lambda: self._shut_down(self.random.choice(live))]
            choices += [lambda: self._suspect(self.random.choice(live))]
        dead = [each for each in BROKERS if each not in self.brokers]
        if dead:
            choices += [lambda: self.start(self.random.choice(dead))] * 3
        self.random.choice(choices)()

    def _forget(self, broker_id: int) -> None:
        self.inbox.pop(broker_id, None)
        self.batches.pop(broker_id, None)
        self.renewals.discard(broker_id)
        for key in [key for key in self.wires if key[0] == broker_id]:
            del self.wires[key]

    def _crash(self, broker_id: int) -> None:
        self._forget(broker_id)
        self.kill(broker_id)

    def _expire(self, broker_id: int) -> None:
        if broker_id in self.renewals:
            return
        broker = self.brokers[broker_id]
        fired = self.zk.expire(broker.session)
        broker.session = -1
        self.renewals.add(broker_id)
        self.inbox.setdefault(broker_id, deque()).append(SessionExpired())
        self._notify(fired)

    def _renew(self, broker_id: int) -> None:
        self.renewals.discard(broker_id)
        # Requests of the old session never reach the new one.
        for batch in self.batches.pop(broker_id, ()):
            self.inbox.setdefault(broker_id, deque()).append(ZkLost(batch.batch_id))
        self.brokers[broker_id].session = self.zk.open_session()
        self._register(broker_id, None)
        self.inbox.setdefault(broker_id, deque()).append(SessionRenewed())

    def _suspect(self, broker_id: int) -> None:
        """Make a controller believe that a live broker is dead."""
        for each in self.brokers.values():
            epoch = each.machine.context.broker_epochs.get(broker_id)
            if epoch is not None:
                self.inbox.setdefault(each.id, deque()).append(BrokerRefuses(broker_id, epoch))
            elif self.random.random() < 0.3:
                self.inbox.setdefault(each.id, deque()).append(ControllerRefuses(broker_id))

    def _create(self) -> None:
        self._made += 1
        name = f"t{self._made % 5}"
        if self.zk.exists(paths.topic(name)) or self.zk.exists(paths.config_entity(paths.TOPICS, name)):
            return
        replicas = [self.random.sample(BROKERS, self.random.randint(1, 3)) for _ in range(self.random.randint(1, 3))]
        self.create_topic(name, *replicas)

    def _delete(self) -> None:
        topics = self.zk.children(paths.BROKER_TOPICS)
        if topics and self.random.random() < 0.4:
            self.delete_topic(self.random.choice(topics))

    def _partition(self) -> TopicPartition | None:
        states = [path for path in self.zk.dump() if path.endswith("/state")]
        if not states:
            return None
        names = self.random.choice(states).split("/")
        return TopicPartition(names[3], int(names[5]))

    def _ask(self, request: Event) -> None:
        active = [each for each in self.brokers.values() if each.machine.is_active]
        if active:
            self.tell(self.random.choice(active).id, request)

    def propose(self, partition: TopicPartition, isr: tuple[int, ...]) -> None:
        """Let a broker that believes to be leader ask for this ISR."""
        state = self.state(partition)
        leader = self.brokers.get(state.leader)
        if leader is None:
            return
        proposed = ProposedIsr(state.leader_epoch, isr, state.partition_epoch, state.recovery)
        topic_id = self.topic_id(partition.topic)
        assert topic_id is not None
        self._ask(AlterPartition(leader.id, leader.epoch, {(topic_id, partition.partition): proposed}))

    def _shrink_or_grow(self) -> None:
        partition = self._partition()
        if partition is None:
            return
        state = self.state(partition)
        if self.random.random() < 0.3:
            isr: tuple[int, ...] = (state.leader,)
        else:
            isr = tuple(
                dict.fromkeys(
                    (*state.isr, *(each for each in self.assignment(partition).replicas if each in self.brokers))
                )
            )
        self.propose(partition, isr)

    def _reassign(self) -> None:
        partition = self._partition()
        if partition is not None:
            target = (
                None if self.random.random() < 0.2 else tuple(self.random.sample(BROKERS, self.random.randint(1, 3)))
            )
            self._ask(AlterReassignments({partition: target}))

    def _fail_directory(self) -> None:
        """Fail the directory of one partition on a broker, until it is started again."""
        partition = self._partition()
        hosts = [each for each in self.brokers.values() if partition in each.hosted]
        if hosts and partition is not None:
            broker = self.random.choice(hosts)
            broker.broken.add(partition)
            self.write(Create(paths.log_dir_event(), encode_log_dir_event(broker.id), sequence=True))

    def _elect(self) -> None:
        self._ask(ElectLeaders(None, ElectionType.PREFERRED))

    def _shut_down(self, broker_id: int) -> None:
        epoch = self.brokers[broker_id].epoch
        self._ask(ControlledShutdown(broker_id, epoch))

    # --- the end ------------------------------------------------------------------------------------------------------

    def bring_all_back(self) -> None:
        """Start every broker again, and finish everything that can finish."""
        self.settle()
        for broker_id in BROKERS:
            if broker_id not in self.brokers:
                self.start(broker_id)
                self.settle()
        # Brokers that were asked to shut down and did not: they do now, and return.
        for broker_id in BROKERS:
            self._crash(broker_id)
            self.settle()
            self.start(broker_id)
            self.settle()
        for _ in range(6):
            for path in [path for path in self.zk.dump() if path.endswith("/state")]:
                names = path.split("/")
                partition = TopicPartition(names[3], int(names[5]))
                if self.zk.exists(path):
                    replicas = self.assignment(partition).replicas
                    self.propose(partition, tuple(dict.fromkeys((*self.state(partition).isr, *replicas))))
                    self.settle()

    def check(self) -> None:
        controller = self.controller
        assert all(each.machine.controller_id == controller.id for each in self.brokers.values())
        assert self.zk.children(paths.DELETE_TOPICS) == ()
        assert not controller.machine.context.reassigning
        for topic in self.zk.children(paths.BROKER_TOPICS):
            data = TopicAssignment.decode(topic, self.zk.get(paths.topic(topic)) or b"")
            for number, assignment in data.partitions.items():
                self._check_partition(TopicPartition(topic, number), assignment)
        topics = set(self.zk.children(paths.BROKER_TOPICS))
        for broker in self.brokers.values():
            assert {each.topic for each in broker.metadata} == topics

    def _check_partition(self, partition: TopicPartition, assignment: ReplicaAssignment) -> None:
        state = self.state(partition)
        assert not assignment.is_being_reassigned, (partition, assignment)
        assert state.leader in self.brokers, (partition, state)
        assert set(state.isr) == set(assignment.replicas), (partition, state, assignment)
        for broker in self.brokers.values():
            known = broker.metadata[partition]
            assert (known.leader, known.leader_epoch, known.isr) == (state.leader, state.leader_epoch, state.isr), (
                broker.id
            )
            assert known.replicas == assignment.replicas
        for replica in assignment.replicas:
            hosted = self.brokers[replica].hosted[partition].leadership
            assert (hosted.leader, hosted.leader_epoch) == (state.leader, state.leader_epoch), (partition, replica)
