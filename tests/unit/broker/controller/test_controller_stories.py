"""The main scenes of a controller, as stories: events, writes to ZooKeeper, requests to brokers."""

from collections.abc import Iterable
from dataclasses import fields
from enum import Enum

from barnabas.base.ids import TopicPartition
from barnabas.broker.controller.effects import (
    CloseChannel,
    Effect,
    Elected,
    OpenChannel,
    Reply,
    Resigned,
    SendLeaderAndIsr,
    SendStopReplica,
    SendUpdateMetadata,
    StartTimer,
    WatchController,
    ZkBatch,
)
from barnabas.broker.controller.events import (
    AlterPartition,
    AlterPartitionReply,
    AlterReassignments,
    ElectionType,
    ElectLeaders,
    Event,
    LeaderAndIsrAnswered,
    StopReplicaAnswered,
    UpdateMetadataAnswered,
    ZkAnswered,
)
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Create, Delete, Multi, Operation, SetData
from barnabas.broker.zookeeper_client.znodes import LeaderAndIsr
from tests.support.stories import Story
from tests.unit.broker.controller.model_cluster import ModelBroker, ModelCluster

T0 = TopicPartition("t", 0)
#: Events that are left out if nothing follows from them.
ANSWERS = (ZkAnswered, LeaderAndIsrAnswered, StopReplicaAnswered, UpdateMetadataAnswered)


class StoryCluster(ModelCluster):
    """Writes down each event that changes something, with the effects that follow from it."""

    def __init__(self, story: Story) -> None:
        super().__init__()
        self._story = story
        self._heading = ""

    def _handle(self, broker: ModelBroker, event: Event) -> list[Effect]:
        self._heading = f"broker {broker.id} <- {_event(event)}"
        return list(broker.machine.handle(event))

    def run(self) -> None:
        if self._is_unseen:
            return
        while self._queue:
            broker_id, event = self._queue.popleft()
            broker = self.brokers.get(broker_id)
            if broker is None:
                continue
            effects = self._handle(broker, event)
            lines = [line for effect in effects for line in _effect(effect)]
            if lines or not isinstance(event, ANSWERS):
                self._story.event(self._heading)
            for line in lines:
                self._story.effect(line)
            for effect in effects:
                self._carry_out(broker, effect)
            broker.machine.validate()


def _event(event: Event) -> str:
    match event:
        case ZkAnswered():
            return "ZooKeeper answers"
        case LeaderAndIsrAnswered() | StopReplicaAnswered() | UpdateMetadataAnswered():
            return f"{type(event).__name__} of broker {event.broker_id}"
        case AlterPartition(broker_id):
            [proposed] = event.partitions.values()
            return f"AlterPartition of broker {broker_id}: isr {_value(proposed.isr)} in epoch {proposed.leader_epoch}"
    values = [_value(getattr(event, each.name)) for each in fields(event)]
    return " ".join([type(event).__name__, *values])


def _value(value: object) -> str:
    match value:
        case TopicPartition(topic, partition):
            return f"{topic}-{partition}"
        case Enum():
            return value.name.lower()
        case dict():
            return " ".join(f"{_value(key)}={_value(each)}" for key, each in value.items())
        case tuple():
            return ",".join(map(_value, value))
    return str(value)


def _effect(effect: Effect) -> Iterable[str]:
    match effect:
        case ZkBatch(_, operations):
            for operation in operations:
                yield from _written(operation)
        case SendLeaderAndIsr():
            for tp, state in effect.partitions.items():
                new = ", new" if state.is_new else ""
                yield f"LeaderAndIsr to {effect.broker_id}: {_value(tp)} {_leadership(state.leadership)}{new}"
        case SendUpdateMetadata():
            brokers = ",".join(str(each.id) for each in effect.live_brokers)
            yield f"UpdateMetadata to {_value(tuple(effect.brokers))}: live brokers {brokers}"
            for tp, known in effect.partitions.items():
                leader = f"leader {known.leader} epoch {known.leader_epoch} isr {_value(known.isr)}"
                yield f"  {_value(tp)} {'is deleted' if known.leader == -2 else leader}"
        case SendStopReplica():
            for tp, stop in effect.partitions.items():
                yield f"StopReplica to {effect.broker_id}: {_value(tp)}{' and delete it' if stop.delete else ''}"
        case Reply(_, value):
            yield f"reply {_reply(value)}"
        case StartTimer(timer):
            yield f"timer {timer.name.lower()}"
        case Elected(epoch):
            yield f"is controller, epoch {epoch}"
        case OpenChannel(broker):
            yield f"open a channel to broker {broker.id}"
        case CloseChannel(broker_id):
            yield f"close the channel to broker {broker_id}"
        case Resigned():
            yield "is no longer controller"
        case WatchController(broker):
            if broker is not None:
                yield f"watch controller {broker.id}"


def _reply(value: object) -> str:
    if isinstance(value, AlterPartitionReply):
        [answer] = value.partitions.values()
        return _leadership(answer) if isinstance(answer, LeaderAndIsr) else answer.name
    return _value(value)


def _leadership(state: LeaderAndIsr) -> str:
    return f"leader {state.leader} epoch {state.leader_epoch} isr {_value(state.isr)}"


def _written(operation: Operation) -> Iterable[str]:
    match operation:
        case Create(path, ephemeral=ephemeral):
            yield f"create {path}{', ephemeral' if ephemeral else ''}"
        case SetData(path, data) if path.endswith("/state"):
            topic, partition = path.split("/")[3], int(path.split("/")[5])
            yield f"set {path}: {_leadership(LeaderAndIsr.decode(TopicPartition(topic, partition), data or b'', 0))}"
        case SetData(path):
            yield f"set {path}"
        case Delete(path):
            yield f"delete {path}"
        case Multi(operations):
            for each in operations:
                yield from _written(each)


def cluster_of(story: Story, brokers: int) -> StoryCluster:
    story.title("brokers start: the first becomes controller")
    cluster = StoryCluster(story)
    cluster.start(*range(1, brokers + 1))
    return cluster


def test_controller_dies(story: Story) -> None:
    cluster = cluster_of(story, 3)
    story.title("a topic is created")
    cluster.create_topic("t", (1, 2, 3))
    story.title("broker 1, controller and leader of t-0, dies")
    cluster.kill(1)
    assert cluster.state(T0).leader == 2
    story.title("it returns, without an office")
    cluster.start(1)
    assert cluster.controller.id != 1


def test_leader_dies_and_returns(story: Story) -> None:
    cluster = cluster_of(story, 3)
    story.title("a topic is created; broker 3 is its preferred leader")
    cluster.create_topic("t", (3, 2))
    story.title("broker 3 dies")
    cluster.kill(3)
    story.title("broker 3 returns; broker 2, the leader, takes it into the ISR")
    cluster.start(3)
    cluster.alter_isr(T0, (2, 3))
    story.title("an administrator asks for the preferred leader")
    cluster.call(ElectLeaders((T0,), ElectionType.PREFERRED))
    assert cluster.state(T0).leader == 3


def test_last_replica_dies(story: Story) -> None:
    cluster = cluster_of(story, 2)
    story.title("a topic with one replica, on broker 2")
    cluster.create_topic("t", (2,))
    story.title("broker 2 dies: no replica in sync is left, the partition is offline")
    cluster.kill(2)
    assert cluster.state(T0).leader == -1
    story.title("broker 2 returns and leads again")
    cluster.start(2)
    assert cluster.state(T0).leader == 2


def test_reassignment(story: Story) -> None:
    cluster = cluster_of(story, 3)
    story.title("a topic on broker 1")
    cluster.create_topic("t", (1,))
    story.title("an administrator moves it to brokers 2 and 3")
    cluster.call(AlterReassignments({T0: (2, 3)}))
    story.title("the new replicas have caught up")
    cluster.alter_isr(T0, (1, 2, 3))
    assert cluster.assignment(T0).replicas == (2, 3)


def test_topic_is_deleted(story: Story) -> None:
    cluster = cluster_of(story, 2)
    story.title("a topic on both brokers")
    cluster.create_topic("t", (1, 2))
    story.title("an administrator deletes it")
    cluster.delete_topic("t")
    assert paths.topic("t") not in cluster.zk.dump()


def test_session_of_the_controller_expires(story: Story) -> None:
    cluster = cluster_of(story, 2)
    story.title("the session of the controller expires, the process goes on")
    cluster.expire_session(1)
    assert cluster.controller.id == 2
