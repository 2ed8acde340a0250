"""A member of a share group like a client, and the driver that creates the states of share partitions."""

from dataclasses import dataclass, field
from typing import Any

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.group import Requester
from barnabas.broker.groups.share import CreateShareStates
from barnabas.broker.groups.share_group import ShareGroup
from barnabas.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from tests.unit.broker.groups.group_harness import GROUP, Harness

#: A partition: topic and number.
Place = tuple[str, int]


def share_group(h: Harness, group_id: str = GROUP) -> ShareGroup:
    group = h.machine.groups[group_id]
    assert isinstance(group, ShareGroup)
    return group


def send(h: Harness, **fields: Any) -> ShareGroupHeartbeatResponse:
    """Send one heartbeat; raise a refusal."""
    request = ShareGroupHeartbeatRequest(group_id=fields.pop("group_id", GROUP), **fields)
    requester = Requester("client", "/127.0.0.1", 1)
    answer = h.ask(lambda machine: machine.share.heartbeat(request, requester, h.now_ms))
    assert isinstance(answer, ShareGroupHeartbeatResponse)
    return answer


def answer_share_coordinators(h: Harness, *failing: Place) -> dict[Place, int]:
    """Report that all states were created for which the machine asked, but for some. Returns their start offsets."""
    starts: dict[Place, int] = {}
    sent, h.sent = h.sent, []
    for message in sent:
        assert isinstance(message, CreateShareStates)
        created: dict[bytes, set[int]] = {}
        failed: dict[bytes, set[int]] = {}
        for (topic_id, number), start_offset in message.starts.items():
            place = topic_id.rstrip(b"\0").decode(), number
            (failed if place in failing else created).setdefault(topic_id, set()).add(number)
            if place not in failing:
                starts[place] = start_offset
        result = h.machine.share.states_created(
            message.group_id,
            {topic_id: frozenset(numbers) for topic_id, numbers in created.items()},
            {topic_id: frozenset(numbers) for topic_id, numbers in failed.items()},
        )
        h.carry_out(result, None)
    return starts


@dataclass
class ShareClient:
    """`poll` sends a heartbeat and takes the assignment of the answer."""

    h: Harness
    member_id: str
    topics: list[str] = field(default_factory=lambda: ["t"])
    group_id: str = GROUP
    epoch: int = 0
    owned: set[Place] = field(default_factory=set)
    #: Whether the next heartbeat has the subscription.
    is_full: bool = True

    def poll(self) -> ShareGroupHeartbeatResponse:
        response = send(
            self.h,
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            subscribed_topic_names=self.topics if self.is_full else None,
        )
        self.epoch, self.is_full = response.member_epoch, False
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

    def subscribe(self, *topics: str) -> None:
        self.topics, self.is_full = list(topics), True

    def leave(self) -> None:
        send(self.h, group_id=self.group_id, member_id=self.member_id, member_epoch=-1)
        self.owned, self.epoch, self.is_full = set(), 0, True

    def numbers(self, topic: str = "t") -> set[int]:
        return {number for name, number in self.owned if name == topic}


def settle(*clients: ShareClient, rounds: int = 4) -> None:
    """Let all members send heartbeats, and the share coordinators answer, until nothing moves."""
    for _ in range(rounds):
        for client in clients:
            client.poll()
        answer_share_coordinators(clients[0].h)
