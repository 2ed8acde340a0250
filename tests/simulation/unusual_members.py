"""Members of groups that do what ours never do: go away and come back, change their protocol, live by other signs of life."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import GROUP_METADATA_TOPIC
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import BrokerRefused, ClientError, check
from barnabas.client.group import RangeProtocol
from barnabas.client.membership import GroupConfig, GroupMember
from barnabas.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tests.simulation.consumer_protocol_members import Member
from tests.simulation.load import Client, Persistent

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

_SESSION_MS: Final = 6_000
_LEAVING: Final = -1
_ORDERS: Final = TopicPartition("orders", 0)


class StaticMember(Persistent):
    """Has an id of its own (KIP-345): goes away without a word, and is back before or after its session has ended."""

    def __init__(self, cluster: "SimCluster", name: str, topics: Sequence[str]) -> None:
        super().__init__(cluster, name)
        self._topics = list(topics)
        #: Now and then another takes its place: the id before is not used any more, and its member expires.
        self._instance = 0

    async def _live(self) -> None:
        self._instance += self.chance.random() < 0.4
        config = GroupConfig(
            group_id="statics",
            group_instance_id=f"{self.name}-{self._instance}",
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=4_000,
            heartbeat_interval_ms=1_000,
        )
        async with self.connect(request_timeout_ms=1_000, api_timeout_ms=2_000) as cluster:
            protocol = RangeProtocol(cluster)
            protocol.topics = self._topics
            member = GroupMember(cluster, config, protocol)
            try:
                await member.join()
                await self.pause(0.1, 2.0)
            finally:
                await member.leave()
        if not self.ending:
            await self.pause(0.0, self.chance.choice([0.2, 1.0, 4.0]))


class Visitor(Client):
    def __init__(self, cluster: "SimCluster", name: str) -> None:
        super().__init__(cluster, name)
        self._count = 0
        #: Whose committed offsets the audit compares.
        self.groups: list[str] = []
        self._visits: list[Callable[[AsyncClient, str], Awaitable[None]]] = [
            self._subscribes_to_an_expression,
            self._lives_by_syncing,
            self._comes_back_as_another,
        ]

    async def main(self) -> None:
        while not self.ending:
            self._count += 1
            try:
                async with self.connect(request_timeout_ms=2_000, api_timeout_ms=6_000) as cluster:
                    await self.chance.choice(self._visits)(cluster, f"{self.name}-{self._count}")
            except ClientError as error:
                self.note(f"leaves: {error}")
            await self.pause(*self.cluster.pace_s)

    # -- a group of KIP-848 with an expression ----------------------------------------------------------------------------

    async def _subscribes_to_an_expression(self, cluster: AsyncClient, group: str) -> None:
        """It names internal topics too: whoever may read them gets them."""
        names = ("orders", GROUP_METADATA_TOPIC)
        await cluster.topics(list(names))
        wanted = {name: cluster.image.topic_id(name) for name in names}
        epoch, given = 0, set[bytes]()
        try:
            for _ in range(6):
                answer = await self._beat(cluster, group, epoch, "|".join(names))
                epoch = answer.member_epoch
                if answer.assignment is not None:
                    given = {each.topic_id for each in answer.assignment.topic_partitions}
                if given >= set(wanted.values()):
                    return
                await self.pause(0.2, 0.3)
        finally:
            await self._beat(cluster, group, _LEAVING, None)
        if wanted["orders"] in given:
            self.world.violate("an expression matches every topic that it names", f"{group} got {given} of {wanted}")

    async def _beat(
        self, cluster: AsyncClient, group: str, epoch: int, expression: str | None
    ) -> ConsumerGroupHeartbeatResponse:
        answer = await cluster.ask_coordinator(
            group,
            ConsumerGroupHeartbeatRequest(
                group_id=group,
                member_id=f"{group}-member",
                member_epoch=epoch,
                rebalance_timeout_ms=6_000,
                subscribed_topic_regex=expression,
                topic_partitions=[] if epoch == 0 else None,
            ),
            ConsumerGroupHeartbeatResponse,
            error_of=lambda answer: answer.error_code,
        )
        check(answer.error_code, answer.error_message)
        return answer

    # -- a classic member without heartbeats ------------------------------------------------------------------------------

    async def _lives_by_syncing(self, cluster: AsyncClient, group: str) -> None:
        """SyncGroup of a stable group is a sign of life as a heartbeat is."""
        joined = await self._join(cluster, group, "")
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            joined = await self._join(cluster, group, joined.member_id)
        check(joined.error_code)
        heard_s: float | None = None  # that it has joined is not in the log yet
        for _ in range(5):
            sent_s = self.world.now_s
            try:
                await self._sync(cluster, group, joined)
            except BrokerRefused as refused:
                is_gone = refused.code is ErrorCode.UNKNOWN_MEMBER_ID
                if is_gone and heard_s is not None and self.world.now_s < heard_s + _SESSION_MS / 1000:
                    self.world.violate(
                        "who gives a sign of life stays a member",
                        f"{joined.member_id} is gone {self.world.now_s - heard_s:.1f} s after its last SyncGroup",
                    )
                return
            heard_s = sent_s
            await self.pause(2.0, 2.5)

    async def _join(self, cluster: AsyncClient, group: str, member_id: str) -> JoinGroupResponse:
        return await cluster.ask_coordinator(
            group,
            JoinGroupRequest(
                group_id=group,
                session_timeout_ms=_SESSION_MS,
                rebalance_timeout_ms=2_000,
                member_id=member_id,
                protocol_type="other",
                protocols=[JoinGroupRequestProtocol(name="other", metadata=b"")],
            ),
            JoinGroupResponse,
            error_of=lambda answer: answer.error_code,
            timeout_ms=5_000,
        )

    async def _sync(self, cluster: AsyncClient, group: str, joined: JoinGroupResponse) -> None:
        answer = await cluster.ask_coordinator(
            group,
            SyncGroupRequest(
                group_id=group,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                protocol_type="other",
                protocol_name="other",
                assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")],
            ),
            SyncGroupResponse,
            error_of=lambda answer: answer.error_code,
        )
        check(answer.error_code)

    # -- from one protocol to the other -----------------------------------------------------------------------------------

    async def _comes_back_as_another(self, cluster: AsyncClient, group: str) -> None:
        """A member of KIP-848 commits and leaves. Then a classic one asks for its id, and dies."""
        member = Member(cluster, group, [_ORDERS.topic], f"{group}-member")
        try:
            await member.join()
            self.groups.append(group)
            self.oracle.commits(group, {_ORDERS: self._count})
            outcome = await member.commit({_ORDERS: self._count})
            if outcome[_ORDERS] is ErrorCode.NONE:
                self.oracle.committed(group, {_ORDERS: self._count})
        finally:
            await member.leave()
        await self._join(cluster, group, "")
