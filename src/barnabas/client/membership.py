"""A group member of any kind over the classic protocol (JoinGroup, SyncGroup, Heartbeat).

`GroupMember` joins, sends heartbeats, commits and leaves. A `GroupProtocol` gives the messages that members exchange:
consumers share partitions (`client.group`), schema registries elect a primary. Owner: the event loop.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.admin.groups import CommittedOffset, commit_offsets
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.core import COORDINATION
from barnabas.client.errors import BrokerRefused, ClientError, check
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from barnabas.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

#: The coordinator no longer knows this member or its generation: join again.
REJOIN = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)


_NUMBERS: Final = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    group_id: str
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    heartbeat_interval_ms: int = 3_000
    auto_commit_interval_ms: int = 5_000
    enable_auto_commit: bool = True
    group_instance_id: str | None = None


class GroupProtocol(Protocol):
    """The messages that members exchange through the coordinator, which does not interpret them."""

    #: As in JoinGroup: all members of one group have the same type, and share at least one protocol name.
    type: str
    name: str

    def metadata(self) -> bytes:
        """Return this member's metadata for the leader of the group."""

    async def assign(self, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return an assignment for each member from the metadata of all members, both by member id. Called only on the
        leader."""


class GroupMember:
    """Call `join` whenever `rejoin_needed` is set; heartbeats run in the background between the calls."""

    def __init__(
        self,
        cluster: AsyncClient,
        config: GroupConfig,
        protocol: GroupProtocol,
        *,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called when the coordinator has requested a rejoin."""
        self._cluster = cluster
        self._config = config
        self._protocol = protocol
        self._changed = changed
        #: The member's own connection. A broker processes one request of a connection at a time, and a JoinGroup waits for the
        #: other members, so on a shared connection no member could send a heartbeat or join meanwhile.
        self._purpose = f"{COORDINATION} of member {next(_NUMBERS)}"
        #: The leader of the group computes the assignments.
        self.is_leader = False
        self.member_id = ""
        self.generation = -1
        self.rejoin_needed = True
        self._beat: asyncio.Task[None] | None = None

    async def join(self) -> bytes:
        """Take part in a rebalance; return this member's assignment."""
        await self._stop_beat()
        while True:
            joined = await self._join()
            try:
                assignment = await self._sync(joined)
            except BrokerRefused as refused:
                if refused.code not in REJOIN:
                    raise
                self._forget(refused.code)
                continue
            self.rejoin_needed = False
            self._beat = asyncio.create_task(self._heartbeats(), name=f"heartbeat-{self._config.group_id}")
            return assignment

    async def _join(self) -> JoinGroupResponse:
        config, protocol = self._config, self._protocol
        metadata = protocol.metadata()
        while True:
            response = await self._cluster.ask_coordinator(
                config.group_id,
                JoinGroupRequest(
                    group_id=config.group_id,
                    session_timeout_ms=config.session_timeout_ms,
                    rebalance_timeout_ms=config.rebalance_timeout_ms,
                    member_id=self.member_id,
                    group_instance_id=config.group_instance_id,
                    protocol_type=protocol.type,
                    protocols=[JoinGroupRequestProtocol(name=protocol.name, metadata=metadata)],
                ),
                JoinGroupResponse,
                error_of=lambda answer: answer.error_code,
                purpose=self._purpose,
                # The response comes after all members have joined.
                timeout_ms=config.rebalance_timeout_ms + 5_000,
            )
            code = ErrorCode(response.error_code)
            if code is ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = response.member_id
            elif code in REJOIN:
                self._forget(code)
            else:
                check(code)
                self.member_id, self.generation = response.member_id, response.generation_id
                self.is_leader = response.leader == response.member_id
                return response

    async def _sync(self, joined: JoinGroupResponse) -> bytes:
        plan: Mapping[str, bytes] = {}
        if joined.leader == joined.member_id and not joined.skip_assignment:
            plan = await self._protocol.assign({each.member_id: bytes(each.metadata) for each in joined.members})
        response = await self._cluster.ask_coordinator(
            self._config.group_id,
            SyncGroupRequest(
                group_id=self._config.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self._config.group_instance_id,
                protocol_type=self._protocol.type,
                protocol_name=self._protocol.name,
                assignments=[
                    SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                    for member, assignment in plan.items()
                ],
            ),
            SyncGroupResponse,
            error_of=lambda answer: answer.error_code,
            purpose=self._purpose,
            timeout_ms=self._config.rebalance_timeout_ms + 5_000,
        )
        check(response.error_code)
        return bytes(response.assignment)

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._config.heartbeat_interval_ms / 1000)
            try:
                code = await self.beat()
            except ClientError:
                # The coordinator was unreachable for longer than a session, so it has removed this member.
                self.rejoin_needed = True
                self._changed()
                return
            if code is not ErrorCode.NONE:
                return

    async def beat(self) -> ErrorCode:
        """Ask the coordinator whether this member, in its generation, still belongs to the group."""
        config = self._config
        response = await self._cluster.ask_coordinator(
            config.group_id,
            HeartbeatRequest(
                group_id=config.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=config.group_instance_id,
            ),
            HeartbeatResponse,
            error_of=lambda answer: answer.error_code,
            purpose=self._purpose,
        )
        code = ErrorCode(response.error_code)
        if code is not ErrorCode.NONE:
            self._forget(code)
        return code

    def _forget(self, code: ErrorCode) -> None:
        self.rejoin_needed = True
        if code is not ErrorCode.REBALANCE_IN_PROGRESS:
            self.generation = -1  # the group has rebalanced: the old generation can commit nothing
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self._changed()

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets. Raise `BrokerRefused` if the group has rebalanced without this member."""
        entries = {partition: CommittedOffset(offset) for partition, offset in offsets.items()}
        outcome = await commit_offsets(
            self._cluster,
            self._config.group_id,
            entries,
            generation=self.generation,
            member_id=self.member_id,
            instance_id=self._config.group_instance_id,
            purpose=self._purpose,
        )
        for partition, code in outcome.items():
            if code in REJOIN:
                self._forget(code)
            check(code, f"commit of {partition}")

    async def leave(self) -> None:
        """Leave the group. A member with an instance id stays, because it is expected back (KIP-345)."""
        await self._stop_beat()
        try:
            await self._say_goodbye()
        finally:
            self._cluster.drop_purpose(self._purpose)

    async def _say_goodbye(self) -> None:
        if not self.member_id or self._config.group_instance_id is not None:
            return
        await self._cluster.ask_coordinator(
            self._config.group_id,
            LeaveGroupRequest(
                group_id=self._config.group_id,
                member_id=self.member_id,
                members=[MemberIdentity(member_id=self.member_id)],
            ),
            LeaveGroupResponse,
            error_of=lambda answer: answer.error_code,
            purpose=self._purpose,
        )
        self.member_id = ""

    async def _stop_beat(self) -> None:
        beat, self._beat = self._beat, None
        if beat is not None:
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)
