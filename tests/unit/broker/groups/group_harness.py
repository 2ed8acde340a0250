"""Drives a group machine like the runtime: records are stored and replayed at once, timers fire when time moves."""

from collections.abc import Callable, Iterable
from typing import Any

from barnabas.base.config.group_config import GroupConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.classic_group import ClassicGroup
from barnabas.broker.groups.group import GroupEnvironment, Requester
from barnabas.broker.groups.machine import GroupMachine
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.runtime.machine import (
    NO_PRODUCER,
    CancelTimer,
    KeyValue,
    Marker,
    Producer,
    ReplayedRecord,
    Respond,
    Result,
    SendToDriver,
    SetTimer,
    Ticket,
)
from barnabas.broker.runtime.shard import REFUSED_TIMER_BACKOFF_MS
from barnabas.wire import codec
from barnabas.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from barnabas.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

GROUP = "g"


def subscription(*topics: str) -> bytes:
    return codec.encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 1)


class FakeTopics:
    """Topics with partitions and racks; the name determines the id."""

    def __init__(self, counts: dict[str, int] | None = None) -> None:
        self.counts = dict(counts or {})
        self.rack_of: dict[tuple[str, int], frozenset[str]] = {}
        self.version = 1

    def set(self, name: str, count: int) -> None:
        if count:
            self.counts[name] = count
        else:
            self.counts.pop(name, None)
        self.version += 1

    @staticmethod
    def id_of(name: str) -> bytes:
        return name.encode().ljust(16, b"\0")[:16]

    def topic_id(self, name: str) -> bytes | None:
        return self.id_of(name) if name in self.counts else None

    def topic_name(self, topic_id: bytes) -> str | None:
        name = topic_id.rstrip(b"\0").decode()
        return name if name in self.counts else None

    def partition_count(self, name: str) -> int:
        return self.counts.get(name, 0)

    def racks(self, name: str, partition: int) -> frozenset[str]:
        return self.rack_of.get((name, partition), frozenset())

    def names(self) -> Iterable[str]:
        return list(self.counts)


class Harness:
    def __init__(self, settings: GroupSettings | None = None, topics: FakeTopics | None = None) -> None:
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.topics = topics or FakeTopics()
        self.group_configs: dict[str, GroupConfig] = {}
        self.consumer_protocol_enabled = True
        self.now_ms = 1_000_000
        self.log: list[ReplayedRecord | Marker] = []
        #: If set, the log refuses records, for example because of too few replicas.
        self.refuses = False
        #: Whether a record was refused since the last accepted one.
        self.is_behind = False
        self.timers: dict[object, tuple[int, int]] = {}
        self.answers: dict[Ticket, Any] = {}
        self.issued: list[Ticket] = []
        #: Messages to the driver, in order.
        self.sent: list[object] = []
        self._timers_set = 0
        self._ids = 0
        self.machine = self.new_machine()
        self.carry_out(self.machine.loaded(self.now_ms), None)

    def new_machine(self) -> GroupMachine:
        return GroupMachine(
            GroupEnvironment(
                settings=lambda: self.settings,
                group_config=lambda group_id: self.group_configs.get(group_id, GroupConfig()),
                topics=self.topics,
                unique=self._unique,
                consumer_protocol_enabled=lambda: self.consumer_protocol_enabled,
            )
        )

    def _unique(self) -> str:
        self._ids += 1
        return f"uuid{self._ids}"

    # -- the runtime's part --------------------------------------------------------------------------------------------

    def run(self, operation: Callable[[GroupMachine, Ticket], Result[Any]]) -> Ticket:
        ticket = Ticket()
        self.issued.append(ticket)
        try:
            result = operation(self.machine, ticket)
        except Refused as refusal:
            self.answers[ticket] = refusal
        else:
            self.carry_out(result, ticket)
        return ticket

    def ask(self, operation: Callable[[GroupMachine], Result[Any]]) -> Any:
        """Return the immediate answer; raise a refusal."""
        ticket = self.run(lambda machine, _: operation(machine))
        answer = self.answers[ticket]
        if isinstance(answer, Refused):
            raise answer
        return answer

    def carry_out(self, result: Result[Any], ticket: Ticket | None) -> bool:
        if result.records:
            self.is_behind = self.refuses
        if result.records and self.refuses:
            self._refuse(result, ticket)
            return False
        for record in result.records:
            self.append(record, result.producer)
        for effect in result.effects:
            if isinstance(effect, SetTimer):
                self._timers_set += 1
                self.timers[effect.key] = (self.now_ms + max(0, effect.delay_ms), self._timers_set)
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.key, None)
            elif isinstance(effect, Respond):
                assert effect.ticket not in self.answers, "answered twice"
                self.answers[effect.ticket] = effect.response
            else:
                assert isinstance(effect, SendToDriver)
                self.sent.append(effect.message)
        if ticket is not None and result.response is not None:
            assert ticket not in self.answers, "answered twice"
            self.answers[ticket] = result.response
        return result.then is None or self.carry_out(result.then(), ticket)

    def _refuse(self, result: Result[Any], ticket: Ticket | None) -> None:
        tickets = {effect.ticket for effect in result.effects if isinstance(effect, Respond)}
        for each in tickets if ticket is None else tickets | {ticket}:
            assert each not in self.answers, "answered twice"
            self.answers[each] = Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if result.if_refused is not None:
            self.carry_out(result.if_refused(), None)

    def append(self, record: KeyValue, producer: Producer = NO_PRODUCER) -> None:
        replayed = ReplayedRecord(record, len(self.log), self.now_ms, producer)
        self.log.append(replayed)
        self.machine.replay(replayed)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        marker = Marker(Producer(producer_id, 0), is_commit)
        self.machine.replay_marker(marker, len(self.log))
        self.log.append(marker)

    def advance(self, delta_ms: int) -> None:
        end_ms = self.now_ms + delta_ms
        while self.timers:
            key, (deadline_ms, _) = min(self.timers.items(), key=lambda item: item[1])
            if deadline_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, deadline_ms)
            del self.timers[key]
            if not self.carry_out(self.machine.timer_fired(key, self.now_ms), None):
                self.carry_out(Result(effects=[SetTimer(key, REFUSED_TIMER_BACKOFF_MS)]), None)
        self.now_ms = end_ms

    def replayed(self) -> GroupMachine:
        """Return the state that a new coordinator would have."""
        machine = self.new_machine()
        for offset, entry in enumerate(self.log):
            if isinstance(entry, Marker):
                machine.replay_marker(entry, offset)
            else:
                machine.replay(entry)
        return machine

    def fail_over(self) -> list[Ticket]:
        """Let a new coordinator take over; fail the requests that wait at the old one."""
        lost = self.machine.unloaded()
        for ticket in lost:
            self.answers[ticket] = Refused(ErrorCode.NOT_COORDINATOR)
        self.machine = self.replayed()
        self.timers.clear()
        self.carry_out(self.machine.loaded(self.now_ms), None)
        return lost

    @property
    def waiting(self) -> list[Ticket]:
        return [ticket for ticket in self.issued if ticket not in self.answers]

    # -- clients' part -------------------------------------------------------------------------------------------------

    def group(self, group_id: str = GROUP) -> ClassicGroup:
        group = self.machine.groups[group_id]
        assert isinstance(group, ClassicGroup)
        return group

    def send_join(
        self,
        member_id: str = "",
        *,
        group_id: str = GROUP,
        instance_id: str | None = None,
        protocols: Iterable[tuple[str, bytes]] = (("range", subscription("t")),),
        protocol_type: str = "consumer",
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 60_000,
        version: int = 9,
        client_id: str = "client",
    ) -> Ticket:
        request = JoinGroupRequest(
            group_id=group_id,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
        )
        requester = Requester(client_id, "/127.0.0.1", version)
        return self.run(lambda machine, ticket: machine.join(request, requester, ticket, self.now_ms))

    def new_member(self, **options: Any) -> tuple[str, Ticket]:
        """A dynamic member that gets its id and joins with it."""
        first = self.answers[self.send_join(**options)]
        assert isinstance(first, JoinGroupResponse)
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED, first
        return first.member_id, self.send_join(first.member_id, **options)

    def send_sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group_id: str = GROUP,
        instance_id: str | None = None,
        protocol_name: str | None = None,
        protocol_type: str | None = None,
    ) -> Ticket:
        request = SyncGroupRequest(
            group_id=group_id,
            member_id=member_id,
            generation_id=generation,
            group_instance_id=instance_id,
            protocol_name=protocol_name,
            protocol_type=protocol_type,
            assignments=[
                SyncGroupRequestAssignment(member_id=key, assignment=value)
                for key, value in (assignments or {}).items()
            ],
        )
        return self.run(lambda machine, ticket: machine.sync(request, ticket, self.now_ms))

    def sync(self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None) -> SyncGroupResponse:
        answer = self.answers[self.send_sync(member_id, generation, assignments)]
        assert isinstance(answer, SyncGroupResponse)
        return answer

    def heartbeat(
        self, member_id: str, generation: int, *, group_id: str = GROUP, instance_id: str | None = None
    ) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=group_id, member_id=member_id, generation_id=generation, group_instance_id=instance_id
        )
        try:
            return ErrorCode(self.ask(lambda machine: machine.heartbeat(request, self.now_ms)).error_code)
        except Refused as refusal:
            return refusal.code

    def leave(self, *members: str | tuple[str, str | None], group_id: str = GROUP) -> list[ErrorCode]:
        identities = [
            MemberIdentity(member_id=each)
            if isinstance(each, str)
            else MemberIdentity(member_id=each[0], group_instance_id=each[1])
            for each in members
        ]
        request = LeaveGroupRequest(group_id=group_id, members=identities)
        response = self.ask(lambda machine: machine.leave(request, self.now_ms))
        assert isinstance(response, LeaveGroupResponse)
        return [ErrorCode(each.error_code) for each in response.members]

    def stable_group(self, size: int = 2, **options: Any) -> list[str]:
        """Return the members of a stable group, the leader first."""
        settings, self.settings = self.settings, GroupSettings(initial_rebalance_delay_ms=100)
        joined = [self.new_member(**options) for _ in range(size)]
        self.advance(1_000)
        self.settings = settings
        ids = [member_id for member_id, _ in joined]
        answer = self.answers[joined[0][1]]
        ids.sort(key=lambda member_id: member_id != answer.leader)
        for member_id in ids[1:]:
            self.send_sync(member_id, answer.generation_id)
        self.sync(ids[0], answer.generation_id, {member_id: member_id.encode() for member_id in ids})
        return ids

    def join_error(self, ticket: Ticket) -> ErrorCode:
        answer = self.answers[ticket]
        return answer.code if isinstance(answer, Refused) else ErrorCode(answer.error_code)
