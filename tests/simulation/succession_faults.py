"""Timed faults at a succession: of a producer whose epochs are used up, of a coordinator, a broker, a leader.

The successor reads what its predecessor left: a transaction in the last epoch, data that members sent in different generations,
records that were cut and overwritten while another process copied them.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import GROUP_METADATA_TOPIC
from barnabas.broker.replication.log_dir_moves import LogDirMoves
from barnabas.broker.replication.machine import SILENT_MS
from barnabas.client.admin.partitions import alter_replica_log_dirs
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.core import COORDINATOR_TROUBLE, TRANSACTION
from barnabas.client.errors import BrokerRefused, check
from barnabas.client.group import RangeProtocol
from barnabas.client.identity import ProducerIdentity
from barnabas.client.transactions import Transactions
from barnabas.wire import codec
from barnabas.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from barnabas.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from barnabas.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tests.simulation.oracle import Fate, Sent, Sum
from tests.simulation.timed_client_faults import Led, TimedFaultClient, answers_to

#: Timeout of a transaction that is to time out, and how long that takes at most, with another coordinator.
_TIMEOUT_MS: Final = 200
_TIMED_OUT_S: Final = 4.0
#: Timeout of a transaction that is not to time out.
_LONG_MS: Final = 5_000
#: How long a returning broker, and a client that waits for it, are left without other faults.
_HEARD_OF_S: Final = 3.0
_SESSION_MS: Final = 6_000
#: How often an operation is tried, and the pause between tries, until the cluster is whole again.
_TRIES: Final = 40
_PAUSE_S: Final = 0.05
#: (assignor, subscribed topic)
_WISHES: Final = (("range", "orders"), ("sticky", "orders"), ("sticky", "events"), ("own", "events"))
#: Number of records in a copied log when they are cut, and number of records after them.
_COPIED: Final = 3
#: Longer than a follower is silent.
_SILENT_S: Final = SILENT_MS / 1000 + 0.1


class SuccessionFaultClient(TimedFaultClient):
    """Visits that happen only if the scenario names them."""

    # -- of a producer ----------------------------------------------------------------------------------------------------

    async def _uses_up_its_epochs(self, cluster: AsyncClient) -> None:
        """A producer's transactions time out in its last epochs. It continues with the next epoch each time, as Kafka 4 lets
        it: the coordinator gives it the epoch of the fence. After the last epoch, the next producer must get a new id.
        """
        found = await self._find_apart(cluster, "epochs")
        if found is None:
            return
        name, _, led = found
        last, transactions = self.cluster.scenario.last_epoch, Transactions(cluster)
        producer = await transactions.initialise(name, timeout_ms=_TIMEOUT_MS)
        while producer.epoch < last - 1:
            producer = await transactions.initialise(name, timeout_ms=_TIMEOUT_MS)
        sums: list[Sum] = []
        for epoch in range(producer.epoch, last + 2):
            producer = ProducerIdentity(producer.producer_id, epoch)
            await transactions.add_partitions(name, producer, [led.tp])
            _have_ended(sums)
            sum_ = self._begin("epochs")
            sums.append(sum_)
            outcome = await self._produce(cluster, self._record(led.tp, sum_), producer, 0, transactional_id=name)
            if not isinstance(outcome, int):
                return
            if self.chance.random() < 0.1:
                self._kill_coordinator(await cluster.coordinator(name, TRANSACTION))
            if self.chance.random() < (0.5 if epoch > last else 0.1):
                break
            self.note(f"waits until {name} times out in epoch {epoch}")
            await self._until(lambda producer=producer: not self._has_open(led.tp, producer), _TIMED_OUT_S)  # type: ignore[misc]
        self.note(f"takes the place of {name}, which was in epoch {producer.epoch}")
        after = await transactions.initialise(name, timeout_ms=_TIMEOUT_MS)
        _have_ended(sums)
        if after.producer_id == producer.producer_id or not 0 <= after.epoch <= last:
            self._broken("used-up producer epochs are not used again", f"{name} was {producer}, and is {after}")

    def _has_open(self, tp: TopicPartition, producer: ProducerIdentity) -> bool:
        log = self.cluster.log_of(self._leader_of(tp), tp)
        return log is None or log.producers.has_ongoing_transaction(*producer)

    def _kill_coordinator(self, broker: int) -> None:
        process = self.cluster.brokers[broker]
        if process.is_serving and self.cluster.network.is_calm and self.cluster.faults is not None:
            self.note(f"kills the coordinator {process.name}")
            self.cluster.faults.kill(process)

    # -- of a coordinator -------------------------------------------------------------------------------------------------

    async def _changes_its_assignor(self, cluster: AsyncClient) -> None:
        """A member changes its assignor, its subscription, or both, under the same id. Then its coordinator goes, and the next
        one must know the new ones from the records.
        """
        self._count += 1
        group = f"{self.name}-changing-{self._count}"
        process = self.cluster.brokers[await cluster.coordinator(group)]
        if not process.is_serving or not self.cluster.network.is_calm:
            return
        assert process.broker is not None
        index = process.broker.groups.coordinator.topic.place_of(group)
        if index is None:
            return
        place, member = TopicPartition(GROUP_METADATA_TOPIC, index), ""
        said = [
            (assignor, codec.encode_versioned(ConsumerProtocolSubscription(topics=[topic]), 0))
            for assignor, topic in self.chance.sample(_WISHES, 3)
        ]
        for number, wanted in enumerate(said):
            # A member with a new assignor still supports the old one, until all members have changed.
            before = said[number - 1] if number and said[number - 1][0] != wanted[0] else wanted
            member = await self._agree(cluster, group, member, dict([wanted, before]))
        self.note(f"expires the session of {process.name}, which coordinates {group}")
        if not self.cluster.expire_session(process):
            return
        if not await self._until(lambda: self._leader_of(place) not in (process.id, -1)):
            return
        described = await self._describe(cluster, group, place)
        if described is None:
            return
        known = {each.member_id: (described.protocol_data, bytes(each.member_metadata)) for each in described.members}
        if known.get(member, said[-1]) != said[-1]:
            self._broken(
                "a coordinator knows what members said last", f"{group}: {member} said {said}, known is {known[member]}"
            )
        gone = LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=member)])
        await cluster.ask_coordinator(group, gone, LeaveGroupResponse, error_of=lambda answer: answer.error_code)

    async def _agree(self, cluster: AsyncClient, group: str, member: str, known: Mapping[str, bytes]) -> str:
        """Complete a generation of one member with its first assignor. Return the member id."""

        async def join(member_id: str) -> JoinGroupResponse:
            request = JoinGroupRequest(
                group_id=group,
                session_timeout_ms=_SESSION_MS,
                rebalance_timeout_ms=2_000,
                member_id=member_id,
                protocol_type=RangeProtocol.type,
                protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in known.items()],
            )
            return await cluster.ask_coordinator(
                group, request, JoinGroupResponse, error_of=lambda answer: answer.error_code
            )

        joined = await join(member)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            joined = await join(joined.member_id)
        check(joined.error_code)
        sync = SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type=RangeProtocol.type,
            protocol_name=joined.protocol_name,
            assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")],
        )
        synced = await cluster.ask_coordinator(
            group, sync, SyncGroupResponse, error_of=lambda answer: answer.error_code
        )
        check(synced.error_code)
        return joined.member_id

    async def _describe(self, cluster: AsyncClient, group: str, place: TopicPartition) -> DescribedGroup | None:
        """Describe the group at the current leader of its partition; the former one may not know that it was replaced."""
        for _ in range(_TRIES):
            request = DescribeGroupsRequest(groups=[group])
            (described,) = (await cluster.ask(self._leader_of(place), request, DescribeGroupsResponse)).groups
            if described.error_code not in COORDINATOR_TROUBLE:
                check(described.error_code)
                return described
            await asyncio.sleep(_PAUSE_S)
        return None

    # -- of a broker ------------------------------------------------------------------------------------------------------

    async def _loses_its_power_as_it_is_asked(self, cluster: AsyncClient) -> None:
        """A leader's host loses power after the broker has accepted a marker, and returns at once. The coordinator does not
        hear of the end of the connection: it must notice that the broker has a new life.
        """
        found, faults = await self._find_apart(cluster, "asked"), self.cluster.faults
        if found is None or faults is None:
            return
        name, coordinator, led = found
        broker, transactions = led.process, Transactions(cluster)
        # The first transaction opens a connection for markers.
        for number in range(2):
            sum_ = self._begin("asked")
            identity = await transactions.initialise(name, timeout_ms=_LONG_MS)
            await transactions.add_partitions(name, identity, [led.tp])
            record = self._record(led.tp, sum_)
            outcome = await self._produce(cluster, record, identity, 0, transactional_id=name, to=broker.id)
            answers = answers_to(coordinator, broker, "transaction-markers")
            if not number or answers is None or answers.held is not None or not isinstance(outcome, int):
                await self._settle(cluster, name, identity, sum_, commit=isinstance(outcome, int))
                continue
            answers.hold()
            try:
                await self._settle(cluster, name, identity, sum_, commit=True)
                if not await self._until(lambda line=answers: line.held) or not faults.damage.may_lose(broker):  # type: ignore[misc]
                    return
                self.note(f"cuts the power of {broker.name} while {coordinator.name} waits for it")
                broker.storage.write_back()  # the broker knows its former session, and need not wait for its end
                faults.damage.cut(broker)
                broker.cut_power()
                answers.lose()
            finally:
                answers.release()
            await asyncio.sleep(self.chance.uniform(0.02, 0.3))
            if not broker.is_up:
                broker.start()
            await asyncio.sleep(_HEARD_OF_S)

    # -- of a leader ------------------------------------------------------------------------------------------------------

    async def _is_cut_while_it_is_copied(self, cluster: AsyncClient) -> None:
        """The log of an isolated leader moves to another directory. The copy has some records that the next leader does not
        have, and is about to read the rest when these are cut and overwritten with as many bytes.
        """
        led = await self._find_movable(cluster)
        if led is None:
            return
        leader, tp, log, end = led.process, led.tp, led.partition.log, led.end
        identities = [await Transactions(cluster).initialise(None, timeout_ms=_TIMEOUT_MS) for _ in range(2)]
        for broker in await cluster.brokers():
            await cluster.link(broker)  # connect now, so that it takes no time later
        loop = leader.loop
        if loop is None or not led.is_same_life:
            return
        loop.hold_work(_is_read_for_a_copy)
        try:
            with self._alone(leader):
                await self._write(cluster, tp, identities[0], range(_COPIED), to=leader.id)
                folder = "/two" if log.log_dir == "/one" else "/one"
                self.note(f"moves the log of {tp} on broker {leader.id} to {folder}, which is at {led.end}")
                await alter_replica_log_dirs(cluster, leader.id, {tp: folder})
                if not await self._until(lambda: loop.held_work):
                    return
                await self._write(cluster, tp, identities[0], range(_COPIED, 2 * _COPIED), to=leader.id)
                # The copy gets the first half of the records, and then waits for the second.
                loop.release_work()
                loop.hold_work(_is_read_for_a_copy)
                if not await self._until(lambda: loop.held_work) or led.end != end + 2 * _COPIED:
                    return
                epoch = log.epochs.epoch_at(end)
                if not self.cluster.expire_session(leader):
                    return
                self.note(f"expires the session of {leader.name}, whose copy of {tp} is at {end + _COPIED}")
                if not await self._until(lambda: self._leader_of(tp) not in (leader.id, -1)):
                    return
                if not await self._write_after(cluster, tp, identities[1], range(2 * _COPIED)):
                    return
            if await self._until(lambda: self._is_written_over(led, end, epoch, 2 * _COPIED)):
                self.note(f"finds {tp} on {leader.name} overwritten from {end} on")
        finally:
            loop.release_work()
        await self._until(lambda: not led.is_same_life or led.partition.future_log is None)

    async def _comes_back_to_a_former_leader(self, cluster: AsyncClient) -> None:
        """A producer has written to the successor of a leader that has not heard of it, and continues at the former one, as
        librdkafka may after it lost a connection. The former leader lacks the records in between, which must not fail the
        producer.
        """
        led = await self._find_movable(cluster)
        if led is None:
            return
        leader, tp = led.process, led.tp
        identity = await Transactions(cluster).initialise(None, timeout_ms=_TIMEOUT_MS)
        for broker in await cluster.brokers():
            await cluster.link(broker)  # connect now, so that it takes no time later
        if not isinstance(await self._produce(cluster, self._sized_record(tp), identity, 0, to=leader.id), int):
            return
        with self._alone(leader):
            if not self.cluster.expire_session(leader):
                return
            if not await self._until(lambda: self._leader_of(tp) not in (leader.id, -1)):
                return
            if not await self._write_after(cluster, tp, identity, range(1, 1 + _COPIED)):
                return
            await asyncio.sleep(_SILENT_S)
            self.note(f"returns to {leader.name}, which led {tp}")
            outcome = await self._produce(cluster, self._sized_record(tp), identity, 1 + _COPIED, to=leader.id, acks=1)
            if isinstance(outcome, BrokerRefused) and outcome.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self._broken("a former leader refuses no sequence number", f"{tp} on {leader.name}: {outcome}")

    async def _find_movable(self, cluster: AsyncClient) -> Led | None:
        """Return a partition with all replicas in sync whose leader can be isolated without changing the controller."""
        for _ in range(_TRIES):
            for tp in self.chance.sample(self._partitions, len(self._partitions)):
                led, controller = await self._find_led(cluster, tp), self.cluster.controller()
                if led and controller not in (None, led.process) and led.partition.future_log is None:
                    return led
            await asyncio.sleep(_PAUSE_S)
        return None

    async def _write(
        self,
        cluster: AsyncClient,
        tp: TopicPartition,
        identity: ProducerIdentity,
        sequences: range,
        *,
        to: int,
        key: bytes | None = None,
    ) -> None:
        """Write a record without waiting for another client."""
        for sequence in sequences:
            await self._produce(cluster, self._sized_record(tp), identity, sequence, to=to, acks=1, key=key)

    async def _write_after(
        self, cluster: AsyncClient, tp: TopicPartition, identity: ProducerIdentity, sequences: range
    ) -> bool:
        """Write at the current leader, which may not have heard of its election yet."""
        for sequence in sequences:
            record = self._sized_record(tp)
            for _ in range(_TRIES):
                outcome = await self._produce(cluster, record, identity, sequence, to=self._leader_of(tp))
                if isinstance(outcome, int):
                    break
                await asyncio.sleep(_PAUSE_S)
            else:
                return False
        return True

    def _sized_record(self, tp: TopicPartition) -> Sent:
        """Return a record that has as many bytes as any other."""
        self._count += 1
        return self.oracle.sends(f"{self.name}-{self._count:06}", tp, is_durable=True, is_idempotent=True)

    def _is_written_over(self, led: Led, end: int, epoch: int, count: int) -> bool:
        log = led.partition.log
        if log is None or not led.is_same_life:
            return False
        return led.end >= end + count and log.epochs.epoch_at(end) != epoch


def _have_ended(sums: list[Sum]) -> None:
    """Note that the former transactions were aborted, because there is a later one."""
    for each in sums:
        each.fate = Fate.ABORTED


def _is_read_for_a_copy(work: Any) -> bool:
    """Whether work for a thread reads a log for a copy."""
    return str(getattr(work, "__qualname__", "")).startswith(LogDirMoves._copy_chunk.__qualname__)
