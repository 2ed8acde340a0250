"""A thread of a Kafka Streams application like the Java client, and the controller that creates internal topics."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from barnabas.base.config.group_config import GroupConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.group import Requester
from barnabas.broker.groups.streams import CreateInternalTopics
from barnabas.broker.groups.streams_group import StreamsGroup
from barnabas.broker.groups.streams_topics import StatusCode
from barnabas.wire.messages.streams_group_heartbeat import (
    CopartitionGroup,
    KeyValue,
    RequestEndpoint,
    RequestTaskIds,
    ResponseTaskIds,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TopicInfo,
    Topology,
)
from tests.unit.broker.groups.group_harness import GROUP, Harness

#: A subtopology and a partition.
Task = tuple[str, int]
#: A group that assigns at once.
AT_ONCE = GroupConfig(streams_initial_rebalance_delay_ms=0, streams_assignment_interval_ms=0)


def streams_group(h: Harness, group_id: str = GROUP) -> StreamsGroup:
    group = h.machine.groups[group_id]
    assert isinstance(group, StreamsGroup)
    return group


def topic(name: str, partitions: int = 0, **settings: str) -> TopicInfo:
    listed = [KeyValue(key=key.replace("_", "."), value=value) for key, value in settings.items()]
    return TopicInfo(name=name, partitions=partitions, topic_configs=listed)


def word_count(epoch: int = 0) -> Topology:
    """`t` is split into words, which are repartitioned and counted with a store."""
    return Topology(
        epoch=epoch,
        subtopologies=[
            Subtopology(subtopology_id="0", source_topics=["t"], repartition_sink_topics=["r"]),
            Subtopology(
                subtopology_id="1",
                repartition_source_topics=[topic("r", cleanup_policy="delete")],
                state_changelog_topics=[topic("c", cleanup_policy="compact")],
                copartition_groups=[CopartitionGroup(repartition_source_topics=[0])],
            ),
        ],
    )


def send(h: Harness, **fields: Any) -> StreamsGroupHeartbeatResponse:
    """Send one heartbeat; raise a refusal."""
    forbidden = fields.pop("forbidden", ())
    request = StreamsGroupHeartbeatRequest(group_id=fields.pop("group_id", GROUP), **fields)
    requester = Requester("client", "/127.0.0.1", 0)
    answer = h.ask(
        lambda machine: machine.streams.heartbeat(request, requester, h.now_ms, lambda name: name not in forbidden)
    )
    assert isinstance(answer, StreamsGroupHeartbeatResponse)
    return answer


def answer_controller(h: Harness, **errors: str) -> list[str]:
    """Create the topics for which the machine asked, but for some. Returns all their names."""
    asked: list[str] = []
    sent, h.sent = h.sent, []
    for message in sent:
        assert isinstance(message, CreateInternalTopics)
        for each in message.topics:
            asked.append(each.name)
            if each.name not in errors:
                h.topics.set(each.name, each.partitions)
        failed = {name: reason for name, reason in errors.items() if name in {each.name for each in message.topics}}
        h.carry_out(h.machine.streams.topics_created(message.group_id, failed, h.now_ms), None)
    return asked


def listed(tasks: Iterable[Task]) -> list[RequestTaskIds]:
    found: dict[str, list[int]] = {}
    for subtopology, number in sorted(tasks):
        found.setdefault(subtopology, []).append(number)
    return [RequestTaskIds(subtopology_id=each, partitions=numbers) for each, numbers in found.items()]


def unlisted(tasks: Iterable[ResponseTaskIds] | None) -> set[Task]:
    return {(each.subtopology_id, number) for each in tasks or () for number in each.partitions}


@dataclass
class StreamsClient:
    """`poll` sends a heartbeat and takes the tasks of the answer. The next one reports them."""

    h: Harness
    member_id: str
    process_id: str = ""
    group_id: str = GROUP
    topology: Topology = field(default_factory=word_count)
    endpoint: tuple[str, int] | None = None
    epoch: int = 0
    endpoint_epoch: int = -1
    active: set[Task] = field(default_factory=set)
    standby: set[Task] = field(default_factory=set)
    #: Whether the client keeps tasks that it was asked to give up.
    is_stuck: bool = False
    #: Status codes of the last answer, with their details.
    statuses: dict[StatusCode, str] = field(default_factory=dict)

    def poll(self, **fields: Any) -> StreamsGroupHeartbeatResponse:
        is_joining = self.epoch == 0
        endpoint = None if self.endpoint is None else RequestEndpoint(host=self.endpoint[0], port=self.endpoint[1])
        response = send(
            self.h,
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            endpoint_information_epoch=self.endpoint_epoch,
            rebalance_timeout_ms=60_000 if is_joining else -1,
            topology=self.topology if is_joining else None,
            process_id=(self.process_id or self.member_id) if is_joining else None,
            user_endpoint=endpoint if is_joining else None,
            active_tasks=listed(self.active),
            standby_tasks=listed(self.standby),
            warmup_tasks=[],
            **fields,
        )
        self.epoch = response.member_epoch
        self.statuses = {StatusCode(each.status_code): each.status_detail for each in response.status or ()}
        self.endpoint_epoch = response.endpoint_information_epoch
        if response.active_tasks is not None:
            active, standby = unlisted(response.active_tasks), unlisted(response.standby_tasks)
            self.active = self.active | active if self.is_stuck else active
            self.standby = self.standby | standby if self.is_stuck else standby
        return response

    def poll_refused(self, **fields: Any) -> ErrorCode:
        try:
            self.poll(**fields)
        except Refused as refusal:
            return refusal.code
        return ErrorCode.NONE

    def restart(self) -> None:
        self.epoch, self.endpoint_epoch, self.active, self.standby = 0, -1, set(), set()

    def leave(self, **fields: Any) -> None:
        send(self.h, group_id=self.group_id, member_id=self.member_id, member_epoch=-1, **fields)
        self.restart()


def settle(*clients: StreamsClient, rounds: int = 5) -> None:
    """Let all members send heartbeats, and the controller answer, until nothing moves."""
    for _ in range(rounds):
        for client in clients:
            client.poll()
        answer_controller(clients[0].h)
