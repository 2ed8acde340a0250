"""Clients of other makes: what librdkafka, a producer that was replaced, or one that never returns does, and ours never would.

A guest speaks the protocol by itself. It pays one visit after the other; each holds the cluster to a promise that well-behaved
clients do not ask for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import LATEST, READ_COMMITTED, READ_UNCOMMITTED
from barnabas.client.admin.groups import CommittedOffset, commit_offsets, committed_offsets
from barnabas.client.admin.partitions import list_offsets
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.core import TRANSACTION
from barnabas.client.errors import BrokerRefused, ClientError, check
from barnabas.client.group import RangeProtocol
from barnabas.client.identity import ProducerIdentity
from barnabas.client.membership import GroupConfig, GroupMember
from barnabas.client.sending import produce_outcome, produce_request
from barnabas.client.transactions import PRODUCE_V1, Transactions
from barnabas.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from barnabas.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from barnabas.wire.messages.produce import ProduceResponse
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from barnabas.wire.records import BatchBuilder
from tests.simulation.load import Client
from tests.simulation.oracle import Fate, Sent, Sum

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

#: As clients before `transaction.version` 2 speak.
_END_TXN_V1: Final = 4
_ADD_OFFSETS_V1: Final = 3
_TXN_OFFSET_COMMIT_V1: Final = 4
#: As clients before Kafka 2.1 speak: they say for how long an offset is to be kept.
_OFFSET_COMMIT_WITH_RETENTION: Final = (2, 3, 4)
_YEAR_MS: Final = 365 * 86_400_000
_EVER_MS: Final = 2**63 - 1
_TIMEOUT_MS: Final = 5_000
#: Nothing was written, for sure.
_REFUSED_AT_ONCE: Final = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class Guest(Client):
    def __init__(self, cluster: "SimCluster", name: str, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(cluster, name)
        self._partitions = list(partitions)
        self._count = 0
        #: Whose committed offsets the audit compares.
        self.groups = [f"{self.name}-offsets"]
        #: Each once, then all again.
        self._next: list[Callable[[AsyncClient], Awaitable[None]]] = []
        self._visits: list[Callable[[AsyncClient], Awaitable[None]]] = [
            self._replaced,
            self._of_a_former_generation,
            self._commits_offsets,
            self._repeats_a_sequence,
            self._comes_early,
            self._begins_anywhere,
            self._goes_back,
            self._leaves_a_gap,
            self._comes_late,
            self._asks_the_wrong_one,
            self._asks_for_ends,
            self._never_returns,
            self._asks_for_offsets,
            self._commits_once,
            self._asks_for_a_new_epoch,
            self._commits_for_others,
        ]
        if wanted := cluster.scenario.guest_visits:
            self._visits = [getattr(self, f"_{visit}") for visit in wanted]

    async def main(self) -> None:
        while not self.ending:
            try:
                if not self._next:
                    self._next = self.chance.sample(self._visits, len(self._visits))
                async with self.arrive() as cluster:
                    await self._next.pop()(cluster)
            except ClientError as error:
                self.note(f"leaves: {error}")
            await self.pause(*self.cluster.pace_s)

    def arrive(self) -> AsyncClient:
        """A connection for one visit."""
        return self.connect(request_timeout_ms=2_000, api_timeout_ms=6_000)

    # -- what it says -----------------------------------------------------------------------------------------------------

    def _record(self, tp: TopicPartition, transaction: Sum | None) -> Sent:
        return self.oracle.sends(self.name, tp, is_durable=True, is_idempotent=True, transaction=transaction)

    async def _produce(
        self,
        cluster: AsyncClient,
        record: Sent,
        identity: ProducerIdentity,
        sequence: int,
        *,
        transactional_id: str | None = None,
        version_max: int | None = PRODUCE_V1,
        to: int | None = None,
        acks: int = -1,
        key: bytes | None = None,
    ) -> int | ClientError:
        """One record in a batch of its own, once. Its offset, or why there is none."""
        builder = BatchBuilder(
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=sequence,
            transactional=transactional_id is not None,
        )
        builder.append(key, record.name.encode(), timestamp=self.clock.now_ms())
        if to is None:
            (to,) = await cluster.leaders([record.tp])
        request = produce_request(
            [(record.tp, builder.build())],
            cluster.image,
            acks=acks,
            timeout_ms=2_000,
            transactional_id=transactional_id,
        )
        record.fate = Fate.UNKNOWN
        response = await cluster.ask(to, request, ProduceResponse, version_max=version_max)
        outcome = produce_outcome(request, response)[record.tp]
        if isinstance(outcome, int) and acks == -1:
            self.oracle.acknowledges(record, outcome)
        return outcome

    async def _end(self, cluster: AsyncClient, name: str, identity: ProducerIdentity, *, commit: bool) -> None:
        """As clients did before `transaction.version` 2: the epoch stays."""
        answer = await cluster.ask_coordinator(
            name,
            EndTxnRequest(
                transactional_id=name,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                committed=commit,
            ),
            EndTxnResponse,
            kind=TRANSACTION,
            error_of=lambda answer: answer.error_code,
            version_max=_END_TXN_V1,
        )
        check(answer.error_code)

    async def _settle(
        self, cluster: AsyncClient, name: str, identity: ProducerIdentity, sum_: Sum, *, commit: bool
    ) -> None:
        sum_.fate = Fate.UNKNOWN
        await cluster.retrying("EndTxn", lambda: self._end(cluster, name, identity, commit=commit))
        sum_.fate = Fate.DONE if commit else Fate.ABORTED

    def _begin(self, kind: str) -> Sum:
        self._count += 1
        sum_ = self.oracle.begins(f"{self.name}-{kind}#{self._count}")
        sum_.fate = Fate.UNKNOWN
        return sum_

    def _broken(self, name: str, detail: str) -> None:
        self.world.violate(name, f"{self.name}: {detail}")

    # -- visits -----------------------------------------------------------------------------------------------------------

    async def _replaced(self, cluster: AsyncClient) -> None:
        """A producer that does not know that another one has taken its transactional id."""
        name, tp = f"{self.name}-twins", self.chance.choice(self._partitions)
        transactions = Transactions(cluster)
        old = await transactions.initialise(name, timeout_ms=_TIMEOUT_MS)
        new = await transactions.initialise(name, timeout_ms=_TIMEOUT_MS)
        if new == old:
            self._broken("a new producer fences the one before", f"both are {new}")
        sum_ = self._begin("twins")
        await transactions.add_partitions(name, new, [tp])
        outcome = await self._produce(cluster, self._record(tp, sum_), new, 0, transactional_id=name)
        if isinstance(outcome, int) and old.producer_id == new.producer_id:
            stale = await self._produce(cluster, self._record(tp, self._begin("stale")), old, 0, transactional_id=name)
            if isinstance(stale, int):
                self._broken("a fenced producer writes nothing", f"{old} wrote to {tp} at {stale}, {new} at {outcome}")
        if (await transactions.end_all({name: old}, committed=True))[name] is None:
            self._broken("a fenced producer ends nothing", f"{old} committed the transaction of {new}")
        await self._settle(cluster, name, new, sum_, commit=False)

    async def _of_a_former_generation(self, cluster: AsyncClient) -> None:
        """A member that commits what it read before the group was rebalanced."""
        config = GroupConfig(
            group_id=f"{self.name}-group",
            session_timeout_ms=6_000,
            rebalance_timeout_ms=4_000,
            enable_auto_commit=False,
        )
        protocol = RangeProtocol(cluster)
        member = GroupMember(cluster, config, protocol)
        try:
            protocol.topics = ["orders"]
            await member.join()
            former = member.generation
            protocol.topics = ["orders", "events"]
            await member.join()
            if 0 <= former < member.generation:
                outcome = await commit_offsets(
                    cluster,
                    config.group_id,
                    {self._partitions[0]: CommittedOffset(1)},
                    generation=former,
                    member_id=member.member_id,
                )
                if ErrorCode.NONE in outcome.values():
                    self._broken(
                        "a former generation commits nothing",
                        f"generation {former}, in {member.generation} of the group",
                    )
        finally:
            await member.leave()

    async def _commits_offsets(self, cluster: AsyncClient) -> None:
        """Offsets are a part of a transaction: they stay if it is committed, and only then."""
        group = self.groups[0]
        tp = self.chance.choice(self._partitions)
        identity = await Transactions(cluster).initialise(group, timeout_ms=_TIMEOUT_MS)
        self._count += 1
        offsets = {tp: self._count}
        self.oracle.commits(group, offsets)

        await cluster.retrying("AddOffsetsToTxn", lambda: self._add_offsets(cluster, group, identity, group))
        await cluster.retrying("TxnOffsetCommit", lambda: self._write_offset(cluster, group, identity, tp))
        commit = self.chance.random() < 0.5
        await cluster.retrying("EndTxn", lambda: self._end(cluster, group, identity, commit=commit))
        if commit:
            self.oracle.committed(group, offsets)
        else:
            self.oracle.withdraws(group, offsets)

    async def _add_offsets(self, cluster: AsyncClient, name: str, identity: ProducerIdentity, group: str) -> None:
        answer = await cluster.ask_coordinator(
            name,
            AddOffsetsToTxnRequest(
                transactional_id=name,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                group_id=group,
            ),
            AddOffsetsToTxnResponse,
            kind=TRANSACTION,
            error_of=lambda answer: answer.error_code,
            version_max=_ADD_OFFSETS_V1,
        )
        check(answer.error_code)

    async def _write_offset(
        self, cluster: AsyncClient, group: str, identity: ProducerIdentity, tp: TopicPartition
    ) -> None:
        answer = await cluster.ask_coordinator(
            group,
            _offset_commit(group, identity, tp, self._count),
            TxnOffsetCommitResponse,
            error_of=lambda answer: answer.topics[0].partitions[0].error_code,
            version_max=_TXN_OFFSET_COMMIT_V1,
        )
        check(self._check_not_of_a_log(group, answer))

    async def _repeats_a_sequence(self, cluster: AsyncClient) -> None:
        """librdkafka gives the sequences of what it purges on an abort to the next transaction."""
        name, tp = f"{self.name}-purger", self.chance.choice(self._partitions)
        transactions = Transactions(cluster)
        identity = await transactions.initialise(name, timeout_ms=_TIMEOUT_MS)
        purged, kept = self._begin("purged"), self._begin("kept")
        await transactions.add_partitions(name, identity, [tp])
        outcome = await self._produce(cluster, self._record(tp, purged), identity, 0, transactional_id=name)
        await self._settle(cluster, name, identity, purged, commit=False)
        if isinstance(outcome, ClientError):
            return
        await transactions.add_partitions(name, identity, [tp])
        again = await self._produce(cluster, self._record(tp, kept), identity, 0, transactional_id=name)
        await self._settle(cluster, name, identity, kept, commit=isinstance(again, int))

    async def _comes_early(self, cluster: AsyncClient) -> None:
        """A batch behind one that was refused and will come again: nothing is out of order, and it must not be first."""
        tp = self.chance.choice(self._partitions)
        identity = await Transactions(cluster).initialise(None, timeout_ms=_TIMEOUT_MS)
        (leader,) = await cluster.leaders([tp])
        life = self.cluster.brokers[leader].lives
        for sequence in range(8):
            outcome = await self._produce(cluster, self._record(tp, None), identity, sequence, to=leader)
            if _is_refused_at_once(outcome):
                await self._follows(cluster, tp, identity, sequence, leader, life)
                return
            if isinstance(outcome, ClientError):
                return
            await self.pause(0.0, 0.3)

    async def _follows(
        self, cluster: AsyncClient, tp: TopicPartition, identity: ProducerIdentity, refused: int, leader: int, life: int
    ) -> None:
        # Four may be under way behind it. Then the log judges.
        for number in range(4):
            await self.pause(0.0, 0.7)
            outcome = await self._produce(cluster, self._record(tp, None), identity, refused + 1 + number, to=leader)
            is_out = isinstance(outcome, BrokerRefused) and outcome.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            if (isinstance(outcome, int) or is_out) and self.cluster.brokers[leader].lives == life:
                self._broken(
                    "what comes behind a refused batch waits for it",
                    f"{tp}: sequence {refused} was refused, then {refused + 1 + number} got {outcome}",
                )
            if not _is_refused_at_once(outcome):
                return

    async def _begins_anywhere(self, cluster: AsyncClient) -> None:
        """A producer of which the brokers know nothing any more goes on where it was: compaction and time forget producers."""
        tp = self.chance.choice(self._partitions)
        identity = await Transactions(cluster).initialise(None, timeout_ms=_TIMEOUT_MS)
        outcome = await self._produce(cluster, self._record(tp, None), identity, 7)
        if isinstance(outcome, BrokerRefused) and outcome.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self._broken("a producer that is not known begins anywhere", f"{tp}: {outcome}")

    async def _goes_back(self, cluster: AsyncClient) -> None:
        """A producer that has raised its epoch, and a batch of the epoch before that arrives late."""
        tp = self.chance.choice(self._partitions)
        old = await Transactions(cluster).initialise(None, timeout_ms=_TIMEOUT_MS)
        new = ProducerIdentity(old.producer_id, old.epoch + 1)
        outcome = await self._produce(cluster, self._record(tp, None), new, 0)
        if isinstance(outcome, int):
            stale = await self._produce(cluster, self._record(tp, None), old, 0)
            if isinstance(stale, int):
                self._broken("a producer's epoch never goes back", f"{tp}: {new} at {outcome}, then {old} at {stale}")

    async def _leaves_a_gap(self, cluster: AsyncClient) -> None:
        """A batch whose predecessors are missing."""
        tp = self.chance.choice(self._partitions)
        identity = await Transactions(cluster).initialise(None, timeout_ms=_TIMEOUT_MS)
        if isinstance(await self._produce(cluster, self._record(tp, None), identity, 0), int):
            outcome = await self._produce(cluster, self._record(tp, None), identity, 5)
            if isinstance(outcome, int):
                self._broken("a producer leaves nothing out", f"{tp}: sequence 5 at {outcome}, behind 0")

    async def _comes_late(self, cluster: AsyncClient) -> None:
        """A batch of a transaction that has ended: it would begin one that nobody ends."""
        name, tp = f"{self.name}-late", self.chance.choice(self._partitions)
        transactions = Transactions(cluster)
        identity = await transactions.initialise(name, timeout_ms=_TIMEOUT_MS)
        sum_ = self._begin("late")
        await transactions.add_partitions(name, identity, [tp])
        if isinstance(await self._produce(cluster, self._record(tp, sum_), identity, 0, transactional_id=name), int):
            await self._settle(cluster, name, identity, sum_, commit=self.chance.random() < 0.5)
            (leader,) = await cluster.leaders([tp])
            log = self.cluster.log_of(leader, tp)
            if log is None or not log.producers.transaction_verification:
                return  # what is not verified is let in
            if log.producers.has_ongoing_transaction(*identity):
                return  # the marker is on its way: it is not late yet
            late = self._record(tp, self._begin("after"))
            outcome = await self._produce(cluster, late, identity, 1, transactional_id=name, to=leader)
            if isinstance(outcome, int):
                self._broken("a batch that comes late is refused", f"{tp}: {identity} at {outcome}")

    async def _asks_the_wrong_one(self, cluster: AsyncClient) -> None:
        """Anybody may be asked to coordinate: clients find the new coordinator only if they are told to look for it."""
        group = self.groups[0]
        tp = self.chance.choice(self._partitions)
        asked = self.chance.choice(list(await cluster.brokers()))
        broker = self.cluster.brokers[asked].broker
        if broker is None or not broker.config.transaction_partition_verification_enable:
            return  # should it be the coordinator after all, it would take the offset, and nobody ends that transaction
        answer = await cluster.ask(
            asked,
            _offset_commit(group, ProducerIdentity(1 << 40, 0), tp, 1),
            TxnOffsetCommitResponse,
            version_max=_TXN_OFFSET_COMMIT_V1,
        )
        self._check_not_of_a_log(group, answer)

    def _check_not_of_a_log(self, group: str, answer: TxnOffsetCommitResponse) -> ErrorCode:
        code = ErrorCode(answer.topics[0].partitions[0].error_code)
        if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self._broken("who does not coordinate a group says so", f"{code.name} to an offset of {group}")
        return code

    async def _asks_for_ends(self, cluster: AsyncClient) -> None:
        """What one was told of the end of a partition holds for everybody."""
        # One by one: of several, the first answers would be old when the last one is there.
        for tp in self.chance.sample(self._partitions, 2):
            isolation = self.chance.choice([READ_UNCOMMITTED, READ_COMMITTED])
            known = self.oracle.asks_for_end(tp, isolation)
            listed = (await list_offsets(cluster, {tp: LATEST}, isolation_level=isolation))[tp]
            if listed.error is ErrorCode.NONE:
                self.oracle.told_end(self.name, tp, isolation, listed.leader_epoch, listed.offset, known)

    async def _never_returns(self, cluster: AsyncClient) -> None:
        """A producer that dies in mid-transaction: the coordinator aborts it in time, or nobody reads on."""
        self._count += 1
        name, tp = f"{self.name}-lost-{self._count}", self.chance.choice(self._partitions)
        transactions = Transactions(cluster)
        identity = await transactions.initialise(name, timeout_ms=_TIMEOUT_MS)
        record = self._record(tp, self._begin("lost"))
        if self.chance.random() < 0.5 and await transactions.raises_epochs(name):
            await self._produce(cluster, record, identity, 0, transactional_id=name, version_max=None)
        else:
            await transactions.add_partitions(name, identity, [tp])
            await self._produce(cluster, record, identity, 0, transactional_id=name)

    async def _commits_once(self, cluster: AsyncClient) -> None:
        """A group that commits one offset, which no later one hides, while somebody looks: what either was told stays."""
        self._count += 1
        group, tp = f"{self.name}-once-{self._count}", self.chance.choice(self._partitions)
        self.groups.append(group)
        self.oracle.commits(group, {tp: self._count})
        looking = asyncio.create_task(self._look(group))
        try:
            outcome = await commit_offsets(cluster, group, {tp: CommittedOffset(self._count)})
            if outcome[tp] is ErrorCode.NONE:
                self.oracle.committed(group, {tp: self._count})
        finally:
            await looking

    async def _commits_for_ever(self, cluster: AsyncClient) -> None:
        """A client that says for how long, as none of ours does; where the scenario names it."""
        self._count += 1
        group, tp = f"{self.name}-kept-{self._count}", self.chance.choice(self._partitions)
        self.groups.append(group)
        partition = OffsetCommitRequestPartition(
            partition_index=tp.partition, committed_offset=self._count, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=group,
            retention_time_ms=self.chance.choice([_YEAR_MS, _EVER_MS - _YEAR_MS, _EVER_MS]),
            topics=[OffsetCommitRequestTopic(name=tp.topic, partitions=[partition])],
        )
        self.oracle.commits(group, {tp: self._count})
        answer = await cluster.ask_coordinator(
            group,
            request,
            OffsetCommitResponse,
            error_of=lambda answer: answer.topics[0].partitions[0].error_code,
            version_max=self.chance.choice(_OFFSET_COMMIT_WITH_RETENTION),
        )
        check(answer.topics[0].partitions[0].error_code)
        self.oracle.committed(group, {tp: self._count})

    async def _look(self, group: str) -> None:
        """On a connection of its own: on the other one it would wait for the commit."""
        await self.pause(0.0, 0.2)
        try:
            async with self.connect(request_timeout_ms=2_000, api_timeout_ms=6_000) as cluster:
                found = await committed_offsets(cluster, group, require_stable=True)
        except ClientError as error:
            self.note(f"cannot look at {group}: {error}")
        else:
            self._told_of(group, {tp: entry.offset for tp, entry in found.items()})

    def _told_of(self, group: str, found: Mapping[TopicPartition, int]) -> None:
        self.oracle.finds(group, found)
        self.cluster.told_of_offsets(self.name, group, found)

    async def _asks_for_offsets(self, cluster: AsyncClient) -> None:
        """What one was told of a group's offsets stays, as what was committed does."""
        group = "group-of-keeper"
        found = await committed_offsets(cluster, group, require_stable=True)
        self._told_of(group, {tp: entry.offset for tp, entry in found.items()})

    async def _asks_for_a_new_epoch(self, cluster: AsyncClient) -> None:
        """A client that began when the cluster raised epochs ends so, whatever the cluster has agreed on since."""
        name, tp = f"{self.name}-raiser", self.chance.choice(self._partitions)
        transactions = Transactions(cluster)
        identity = await transactions.initialise(name, timeout_ms=_TIMEOUT_MS)
        sum_ = self._begin("raiser")
        await transactions.add_partitions(name, identity, [tp])
        await self._produce(cluster, self._record(tp, sum_), identity, 0, transactional_id=name)
        after = await transactions.end(name, identity, committed=False, raises_epochs=True)
        sum_.fate = Fate.ABORTED
        if after == identity:
            self._broken("who asks for a new epoch gets one", f"{name} is {identity}, before and after its transaction")

    async def _commits_for_others(self, cluster: AsyncClient) -> None:
        """A producer that says nothing of a member commits offsets of a group of KIP-848 that has some."""
        if not self.cluster.scenario.modern_members:
            return
        group, name, tp = "modern", f"{self.name}-others", self.chance.choice(self._partitions)
        identity = await Transactions(cluster).initialise(name, timeout_ms=_TIMEOUT_MS)
        await cluster.retrying("AddOffsetsToTxn", lambda: self._add_offsets(cluster, name, identity, group))
        answer = await cluster.ask_coordinator(
            group,
            _offset_commit(group, identity, tp, 1, transactional_id=name),
            TxnOffsetCommitResponse,
            error_of=lambda answer: answer.topics[0].partitions[0].error_code,
            version_max=_TXN_OFFSET_COMMIT_V1,
        )
        if self._check_not_of_a_log(group, answer) is ErrorCode.UNKNOWN_MEMBER_ID:
            self._broken("who names no member may commit in a transaction", f"{name} for {group}")
        await cluster.retrying("EndTxn", lambda: self._end(cluster, name, identity, commit=False))


def _is_refused_at_once(outcome: int | ClientError) -> bool:
    return isinstance(outcome, BrokerRefused) and outcome.code in _REFUSED_AT_ONCE


def _offset_commit(
    group: str, identity: ProducerIdentity, tp: TopicPartition, offset: int, *, transactional_id: str | None = None
) -> TxnOffsetCommitRequest:
    partition = TxnOffsetCommitRequestPartition(
        partition_index=tp.partition, committed_offset=offset, committed_metadata=""
    )
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id or group,
        group_id=group,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=tp.topic, partitions=[partition])],
    )
