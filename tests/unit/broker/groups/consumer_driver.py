"""A member of a consumer group like a client: it keeps its epoch and its partitions, and follows the answers."""

from dataclasses import dataclass, field
from typing import Any

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.consumer_group import ConsumerGroup
from barnabas.broker.groups.group import Requester
from barnabas.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    RequestTopicPartitions,
)
from tests.unit.broker.groups.group_harness import GROUP, FakeTopics, Harness

Owned = set[tuple[str, int]]


def consumer_group(h: Harness, group_id: str = GROUP) -> ConsumerGroup:
    group = h.machine.groups[group_id]
    assert isinstance(group, ConsumerGroup)
    return group


def send(h: Harness, *, version: int = 1, **fields: Any) -> ConsumerGroupHeartbeatResponse:
    """Send one heartbeat; raise a refusal."""
    request = ConsumerGroupHeartbeatRequest(group_id=fields.pop("group_id", GROUP), **fields)
    requester = Requester("client", "/127.0.0.1", version)
    answer = h.ask(lambda machine: machine.consumer_heartbeat(request, requester, h.now_ms))
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


@dataclass
class Client:
    """`poll` sends a heartbeat and follows the answer: it revokes at once and takes its assignment."""

    h: Harness
    member_id: str
    topics: list[str] = field(default_factory=lambda: ["t"])
    regex: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    rack: str | None = None
    epoch: int = 0
    owned: Owned = field(default_factory=set)
    #: Epochs of the answers, in order.
    seen: list[int] = field(default_factory=list)

    def _listed(self) -> list[RequestTopicPartitions]:
        by_topic: dict[str, list[int]] = {}
        for topic, number in sorted(self.owned):
            by_topic.setdefault(topic, []).append(number)
        return [RequestTopicPartitions(topic_id=FakeTopics.id_of(t), partitions=n) for t, n in by_topic.items()]

    def poll(self) -> ConsumerGroupHeartbeatResponse:
        response = send(
            self.h,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rack_id=self.rack,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=self.topics,
            subscribed_topic_regex=self.regex,
            server_assignor=self.assignor,
            topic_partitions=self._listed(),
        )
        self.epoch = response.member_epoch
        self.seen.append(self.epoch)
        if response.assignment is not None:
            self.owned = {
                (each.topic_id.rstrip(b"\0").decode(), number)
                for each in response.assignment.topic_partitions
                for number in each.partitions
            }
        return response

    def poll_refused(self) -> ErrorCode:
        try:
            self.poll()
        except Refused as refusal:
            return refusal.code
        return ErrorCode.NONE

    def leave(self, epoch: int = -1) -> None:
        send(self.h, member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id)
        self.owned = set()

    def numbers(self, topic: str = "t") -> set[int]:
        return {number for name, number in self.owned if name == topic}


def settle(*clients: Client, rounds: int = 6) -> None:
    """Let all members send heartbeats until all have reached the target."""
    for _ in range(rounds):
        for client in clients:
            client.poll()
