"""The aftermath: all faults are over, and administrators work, one after the other. Each of them meets one timed fault.

These operations need a cluster at rest: a deletion waits for brokers that are down, and a reassignment for replicas in sync. So
every seed of the profile runs all of them, each several times. The clients have processes of their own, as in
`encounter_clients.py`.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import GROUP_METADATA_TOPIC
from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.znodes import TopicAssignment
from barnabas.client.admin.groups import CommittedOffset, commit_offsets, committed_offsets
from barnabas.client.admin.partitions import alter_reassignments, elect_leaders
from barnabas.client.admin.topics import NewTopic, create_topics, delete_topics
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import ClientError, check
from barnabas.testing.simulation.process import BrokerProcess
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.simulation.encounter_clients import TURN_S, EncounterClient
from tests.simulation.load import RECREATED

if TYPE_CHECKING:
    from barnabas.testing.simulation.network import Line
    from tests.simulation.cluster import SimCluster

#: Time for brokers to come back, and for the cluster to finish what the previous client started.
QUIET_WITHIN_S: Final = 10.0
#: How long a coordinator may keep offsets of a deleted topic after it has heard of the new topic of the same name.
FORGOTTEN_S: Final = 1.0
#: So many group names are enough to hit every coordinator.
GROUPS: Final = 8
#: Settings that several clients change on one topic at the same time, one setting each.
SETTINGS: Final = ("retention.ms", "retention.bytes", "segment.ms", "segment.jitter.ms")


class AftermathClient(EncounterClient):
    """A client that works after all faults are over: it repeats its meeting `times` times and ends."""

    times: ClassVar[int]

    def __init__(self, cluster: "SimCluster", name: str) -> None:
        super().__init__(cluster, name)
        self.is_done = False

    async def main(self) -> None:
        for number in range(1, self.times + 1):
            self._made = number
            try:
                async with self.connect(api_timeout_ms=3_000, request_timeout_ms=3_000) as cluster:
                    if await self._until(lambda: self._is_quiet, QUIET_WITHIN_S):
                        await cluster.refresh(())
                        await self._meet(cluster)
            except ClientError as error:
                self.note(f"is refused: {error}")
        self.is_done = True

    def _choose_broker(self) -> tuple[BrokerProcess | None, list[int]]:
        """Return a broker that is not the controller, and the ids of all other brokers."""
        controller = self.cluster.controller()
        chosen = self.chance.choice([each for each in self.cluster.brokers.values() if each is not controller])
        return (None if controller is None else chosen), [each for each in self.cluster.brokers if each != chosen.id]

    async def _make(self, cluster: AsyncClient, name: str, replicas: Mapping[int, Sequence[int]]) -> None:
        await create_topics(cluster, [NewTopic(name=name, assignment=replicas, configs={"min.insync.replicas": "1"})])

    async def _delete(self, cluster: AsyncClient, name: str) -> None:
        await delete_topics(cluster, [name])
        await self._until(lambda: self.cluster.data_at(paths.topic(name)) is None)

    def _topic_id(self, name: str) -> bytes | None:
        """Return the id that ZooKeeper has for the topic."""
        data = self.cluster.data_at(paths.topic(name))
        return None if data is None else TopicAssignment.decode(name, data).topic_id

    def _leader_of(self, tp: TopicPartition) -> int:
        """Return the leader that ZooKeeper has."""
        state = self.cluster.partition_states().get(tp)
        return -1 if state is None else state.leader

    def _leads(self, process: BrokerProcess, tp: TopicPartition) -> bool:
        """Whether the broker believes that it leads the partition."""
        partition = (
            process.broker.replicas.hosted.get(tp) if process.is_serving and process.broker is not None else None
        )
        return partition is not None and partition.is_leader

    def _knows(self, process: BrokerProcess, name: str, topic_id: bytes | None) -> bool:
        """Whether the broker knows the topic under this id."""
        return process.is_serving and process.broker is not None and process.broker.metadata.topic_id(name) == topic_id

    def _partitions_of(self, process: BrokerProcess, name: str) -> set[int]:
        """Return the partitions of the topic that the broker knows."""
        topic = process.broker.metadata.topic(name) if process.broker is not None else None
        return set() if topic is None else set(topic.partitions)


class LostAnswerCreator(AftermathClient):
    """Creates a topic. The controller loses its connection to ZooKeeper after ZooKeeper created the topic and before the
    controller gets the answer. No other client uses that name and it is requested once: the answer must not be "already
    exists".
    """

    times = 4

    async def _meet(self, cluster: AsyncClient) -> None:
        controller = self.cluster.controller()
        if controller is None or controller.broker is None:
            return
        name = f"once-{self._made}"
        request = CreateTopicsRequest(
            topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=2)], timeout_ms=2_000
        )
        await cluster.link(controller.id)
        asked = asyncio.create_task(cluster.ask(controller.id, request, CreateTopicsResponse))
        session = controller.broker.session
        if await self._until(lambda: self.cluster.data_at(paths.topic(name)) is not None) and session._in_flight:
            self.note(f"{controller.name} has created {name}, and loses ZooKeeper before it gets the answer")
            session._connection._client.lose_connection()  # type: ignore[union-attr]
        [answer] = (await asked).topics
        if answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
            self.world.violate(
                "the creator of a topic does not get TOPIC_ALREADY_EXISTS",
                f"{name} was asked for once, of {controller.name}",
            )


class SettingChanger(AftermathClient):
    """Clients change one setting each of the same topic, at the same time, through different brokers."""

    times = 4

    async def _meet(self, cluster: AsyncClient) -> None:
        topic, value = "changed", str(1_000_000 + self._made)
        if self.cluster.settings_of(topic) is None:
            await create_topics(cluster, [NewTopic(name=topic, partitions=1, replication_factor=2)])
        pairs = list(zip(self.cluster.brokers, SETTINGS, strict=False))
        for broker, _ in pairs:
            await cluster.link(broker)
        self.note(f"changes {len(pairs)} settings of {topic} at once")
        await asyncio.gather(*(self._change(cluster, broker, topic, name, value) for broker, name in pairs))
        found = self.cluster.settings_of(topic)
        lost = [] if found is None else [name for _, name in pairs if found.get(name) != value]
        if lost:
            self.world.violate(
                "no concurrent change is lost",
                f"{topic} has {found}: {', '.join(lost)} should be {value}",
            )

    async def _change(self, cluster: AsyncClient, broker: int, topic: str, name: str, value: str) -> None:
        change = AlterableConfig(name=name, config_operation=AlterOperation.SET, value=value)
        resource = AlterConfigsResource(resource_type=ConfigResourceType.TOPIC, resource_name=topic, configs=[change])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        [answer] = (await cluster.ask(broker, request, IncrementalAlterConfigsResponse)).responses
        check(answer.error_code, answer.error_message)


class IsolatedReplicaMover(AftermathClient):
    """Moves the replica of a broker that is cut off, deletes the topic, and creates it again on other brokers with fewer
    partitions. The cut-off broker lives and led one of the partitions: when it returns, the topic has the same name and its
    epochs begin again at 0.
    """

    times = 2

    async def _meet(self, cluster: AsyncClient) -> None:
        away, others = self._choose_broker()
        if away is None or away.broker is None:
            return
        name = f"{RECREATED}elsewhere-{self._made}"
        tp = TopicPartition(name, 0)
        before = {0: [away.id, others[0]], **dict.fromkeys((1, 2), others[:2])}
        await self._make(cluster, name, before)
        await cluster.link(away.id)
        if not await self._until(lambda: self._leads(away, tp) and self._partitions_of(away, name) == {0, 1, 2}):
            return
        with self._sent_away(away):
            if not await self._until(lambda: self._leader_of(tp) in others):
                return
            await alter_reassignments(cluster, {tp: others[:2]})
            if not await self._until(lambda: self.cluster.settled_replicas(tp) == tuple(others[:2])):
                return
            await self._delete(cluster, name)
            await self._make(cluster, name, {0: others[:2]})
            topic_id = self._topic_id(name)
        # If the broker leads a partition that it has no replica of, `invariants.py` reports it.
        if not await self._until(lambda: self._knows(away, name, topic_id)) or not await self._until(
            lambda: not self._leads(away, tp)
        ):
            return
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        [topic] = (await cluster.ask(away.id, request, MetadataResponse)).topics
        found = sorted(each.partition_index for each in topic.partitions)
        if topic.error_code == ErrorCode.NONE and topic.topic_id == topic_id and found != [0]:
            self.world.violate(
                "a topic that is created again has only its own partitions", f"{away.name} says that {name} has {found}"
            )

    @contextmanager
    def _sent_away(self, broker: BrokerProcess) -> Iterator[None]:
        """Cut the broker off from ZooKeeper and the other brokers; only clients reach it. Its session expires."""
        others = [self.cluster.zookeeper, *(each for each in self.cluster.brokers.values() if each is not broker)]
        pairs = [pair for each in others for pair in ((broker.name, each.name), (each.name, broker.name))]
        self.note(f"cuts off {broker.name} and moves its replicas")
        for pair in pairs:
            self.cluster.network.cut(*pair)
        self.cluster.expire_session(broker)
        try:
            yield
        finally:
            for pair in pairs:
                self.cluster.network.mend(*pair)


class TopicRecreator(AftermathClient):
    """Deletes a topic of which a group has committed offsets, and creates it again, while the group's coordinator, which has no
    replica of the topic, has not answered the controller. The group must have no offset of the new topic.
    """

    times = 2

    async def _meet(self, cluster: AsyncClient) -> None:
        controller, (group, coordinator) = self.cluster.controller(), await self._choose_group(cluster)
        if controller is None or controller.broker is None or coordinator is None:
            return
        others = [each for each in self.cluster.brokers if each != coordinator.id]
        tp = TopicPartition(f"{RECREATED}succeeded-{self._made}", 0)
        await self._make(cluster, tp.topic, {0: others[:2]})
        if not await self._until(lambda: self._knows(coordinator, tp.topic, self._topic_id(tp.topic))):
            return
        await commit_offsets(cluster, group, {tp: CommittedOffset(5)})
        if tp not in await committed_offsets(cluster, group, [tp]):
            return
        life = coordinator.lives
        answers = self._answers_to(controller, coordinator)
        if answers is None:
            return
        answers.hold()
        try:
            await self._make(cluster, f"{RECREATED}between-{self._made}", {0: others[:1]})
            if not await self._until(lambda: answers.held):
                return
            self.note(f"creates {tp.topic} again while {controller.name} waits for {coordinator.name}")
            await self._delete(cluster, tp.topic)
            await self._make(cluster, tp.topic, {0: others[:2]})
            topic_id = self._topic_id(tp.topic)
        finally:
            answers.release()
        if not await self._until(lambda: self._knows(coordinator, tp.topic, topic_id)):
            return
        await cluster.refresh([tp.topic])
        until_s = self.world.now_s + FORGOTTEN_S
        while found := await committed_offsets(cluster, group, [tp]):
            if self.world.now_s >= until_s and coordinator.is_serving and coordinator.lives == life:
                self.world.violate(
                    "committed offsets of a topic are deleted with it",
                    f"{group} has {found} of the topic that was made again",
                )
            await asyncio.sleep(TURN_S)

    def _answers_to(self, controller: BrokerProcess, broker: BrokerProcess) -> "Line | None":
        """Return the broker's side of the connection that the controller has to it."""
        channel, _ = controller.broker.controller._channels.get(broker.id, (None, None))  # type: ignore[union-attr]
        link: Any = None if channel is None else channel._lifeline._link
        if link is None or link._transport is None:
            return None
        line: Line = link._transport._line.other
        return None if line.is_closed or line.is_gone or line.is_reset or line.held is not None else line

    async def _choose_group(self, cluster: AsyncClient) -> tuple[str, BrokerProcess | None]:
        """Return a new group whose coordinator is not the controller."""
        group = ""
        for number in range(GROUPS):
            group = f"{self.name}-{self._made}-{number}"
            broker = self.cluster.brokers[await cluster.coordinator(group)]
            if broker is not self.cluster.controller():
                return group, broker
        # The controller coordinates all of these groups.
        return group, await self._replace(cluster, group, broker)

    async def _replace(self, cluster: AsyncClient, group: str, controller: BrokerProcess) -> BrokerProcess | None:
        """Make another broker the coordinator of the group."""
        index = None if controller.broker is None else controller.broker.groups.coordinator.topic.place_of(group)
        if index is None:
            return None
        place = TopicPartition(GROUP_METADATA_TOPIC, index)
        order = sorted(self.cluster.settled_replicas(place), key=lambda each: each == controller.id)
        if not order or order[0] == controller.id:
            return None
        broker = self.cluster.brokers[order[0]]
        self.note(f"makes {broker.name} leader of {place}")
        await alter_reassignments(cluster, {place: order})
        await self._until(lambda: self.cluster.settled_replicas(place) == tuple(order))
        await elect_leaders(cluster, 0, [place])
        return broker if await self._until(lambda: self._leads(broker, place)) else None


def aftermath_clients(cluster: "SimCluster") -> Sequence[AftermathClient]:
    return [
        LostAnswerCreator(cluster, "once"),
        SettingChanger(cluster, "changer"),
        IsolatedReplicaMover(cluster, "mover"),
        TopicRecreator(cluster, "renewer"),
    ]
