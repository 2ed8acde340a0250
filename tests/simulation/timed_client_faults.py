"""Clients that cause faults at the very moment at which they hurt.

Some defects need three events within one round trip: a record that is being written to disk, an election, and another election
back. At random they coincide once in thousands of seeds. An ambusher brings them about: it holds back the packets of one
connection, slows one sync down, or ends a session, looks at a broker until the moment has come, and then sends the request that
is needed. All that it does may happen in a real cluster.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.broker.runtime.shard import ShardState
from barnabas.client.admin.configs import alter_configs
from barnabas.client.admin.partitions import alter_reassignments, alter_replica_log_dirs, elect_leaders
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.core import TRANSACTION
from barnabas.client.errors import BrokerRefused, ClientError, check
from barnabas.client.identity import ProducerIdentity
from barnabas.client.producer import Delivery, Producer, ProducerConfig
from barnabas.client.transactions import Transactions
from barnabas.testing.simulation.process import BrokerProcess
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tests.simulation.control_invariants import COORDINATORS
from tests.simulation.foreign_clients import ForeignClient
from tests.simulation.load import give_up, settle
from tests.simulation.oracle import Fate, Sent, Sum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from barnabas.testing.simulation.network import Line
    from tests.simulation.cluster import SimCluster

#: A topic that no other client writes to: acknowledged records are on disk, and records are small.
FLUSHED_TOPIC: Final = "ambushed"
FLUSHED_PARTITIONS: Final = 4
_RECORD_BYTES_MAX: Final = 4_000
FLUSHED_SETTINGS: Final = {
    "min.insync.replicas": "2",
    "flush.messages": "1",
    "max.message.bytes": str(_RECORD_BYTES_MAX),
}
#: How often a broker is looked at, and for how long.
_STEP_S: Final = 0.0005
_LIMIT_S: Final = 2.0
#: How long a sync takes during which another event happens.
_SYNC_S: Final = 1.0
#: The same for two elections.
_LONG_SYNC_S: Final = 3.0
#: By this time `Invariants`, which looks twenty times a second, has seen it.
_LOOKED_AT_S: Final = 0.1
_TIMEOUT_MS: Final = 5_000
#: Longer than any of the timed faults takes.
_REQUEST_TIMEOUT_MS: Final = 8_000


class Led(NamedTuple):
    """A partition, and one life of the broker that leads it."""

    tp: TopicPartition
    process: BrokerProcess
    life: int
    partition: Any

    @property
    def is_same_life(self) -> bool:
        return self.process.is_up and self.process.lives == self.life

    @property
    def end(self) -> int:
        log = self.partition.log
        return -1 if log is None else int(log.log_end_offset)


class TimedFaultClient(ForeignClient):
    def __init__(self, cluster: "SimCluster", name: str, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(cluster, name, partitions)
        self.groups = []
        self._visits: list[Callable[[AsyncClient], Awaitable[None]]] = [
            self._leads_again_before_it_has_flushed,
            self._repeats_what_is_being_flushed,
            self._moves_what_is_being_flushed,
            self._moves_as_it_loads,
            self._comes_late_twice,
            self._misses_an_election,
            self._returns_while_too_few_are_there,
            self._waits_for_a_connection,
            self._writes_too_much,
        ]
        if wanted := cluster.scenario.ambushes:
            self._visits = [getattr(self, f"_{visit}") for visit in wanted]

    def arrive(self) -> AsyncClient:
        return self.connect(request_timeout_ms=_REQUEST_TIMEOUT_MS, api_timeout_ms=_REQUEST_TIMEOUT_MS)

    def _record(self, tp: TopicPartition, transaction: Sum | None) -> Sent:
        """Return a record of a producer of its own: records in flight of one visit may be written after those of the next."""
        self._count += 1
        return self.oracle.sends(
            f"{self.name}-{self._count}", tp, is_durable=True, is_idempotent=True, transaction=transaction
        )

    # -- waiting for the moment --------------------------------------------------------------------------------------------

    async def _until(self, has_come: Callable[[], object], limit_s: float = _LIMIT_S) -> bool:
        """Wait for the condition; return whether it came true in time."""
        until_s = self.world.now_s + limit_s
        while not has_come():
            if self.world.now_s >= until_s:
                return False
            await asyncio.sleep(_STEP_S)
        return True

    @contextmanager
    def _alone(self, process: BrokerProcess) -> "Iterator[None]":
        """Let a broker reach ZooKeeper and its clients, and no other broker."""
        network, others = self.cluster.network, [each for each in self.cluster.brokers.values() if each is not process]
        pairs = [pair for each in others for pair in ((process.name, each.name), (each.name, process.name))]
        self.note(f"cuts {process.name} off from other brokers")
        for pair in pairs:
            network.cut(*pair)
        try:
            yield
        finally:
            for pair in pairs:
                network.mend(*pair)

    def _begin_task(self, work: Coroutine[Any, Any, int | ClientError]) -> "asyncio.Task[int | ClientError]":
        async def outcome() -> int | ClientError:
            try:
                return await work
            except ClientError as error:
                return error

        return asyncio.create_task(outcome())

    async def _find_led(self, cluster: AsyncClient, tp: TopicPartition) -> Led | None:
        """Return a partition whose replicas are all in sync and whose leader is healthy."""
        (leader,) = await cluster.leaders([tp])
        process, state = self.cluster.brokers[leader], self.cluster.partition_states().get(tp)
        if state is None or state.leader != leader or len(state.isr) < len(self.cluster.settled_replicas(tp)):
            return None
        if not process.is_serving or process.storage.faults or not self.cluster.network.is_calm:
            return None
        assert process.broker is not None
        partition = process.broker.replicas.hosted.get(tp)
        if partition is None or not partition.is_leader or partition.log is None:
            return None
        return Led(tp, process, process.lives, partition)

    async def _find_apart(
        self, cluster: AsyncClient, what: str, *, but: BrokerProcess | None = None
    ) -> tuple[str, BrokerProcess, Led] | None:
        """Return a transactional id whose coordinator is not `but`, with that coordinator, and a partition that another broker
        leads.
        """
        for _ in range(6):
            self._count += 1
            name = f"{self.name}-{what}-{self._count}"
            process = self.cluster.brokers[await cluster.coordinator(name, TRANSACTION)]
            if process is but or not process.is_serving:
                continue
            for tp in self.chance.sample(self._partitions, len(self._partitions)):
                led = await self._find_led(cluster, tp)
                if led is not None and led.process is not process:
                    return name, process, led
        return None

    # -- with flush.messages ----------------------------------------------------------------------------------------------

    async def _leads_again_before_it_has_flushed(self, cluster: AsyncClient) -> None:
        """A record is cut while its leader flushes it. When the flush ends, the broker leads again, with another record at this
        offset.
        """
        tp = self.chance.choice(self._partitions)
        led, controller = await self._find_led(cluster, tp), self.cluster.controller()
        if led is None or controller in (None, led.process):
            return
        leader = led.process
        if self.cluster.settled_replicas(tp)[0] != leader.id:
            await elect_leaders(cluster, 0, [tp])
            return
        transactions, end = Transactions(cluster), led.end
        identities = [await transactions.initialise(None, timeout_ms=_TIMEOUT_MS) for _ in range(2)]
        async with self.arrive() as other:
            await other.leaders([tp])
            await other.link(leader.id)
            with self._alone(leader):
                leader.slow_next_sync(_LONG_SYNC_S)
                waiting = self._begin_task(self._produce(other, self._record(tp, None), identities[0], 0, to=leader.id))
                if await self._until(lambda: led.end > end) and self.cluster.expire_session(leader):
                    self.note(f"expires the session of {leader.name}, which flushes {tp}")
                    await self._until(lambda: self._leader_of(tp) not in (leader.id, -1))
            if await self._until(lambda: self._leader_of(tp) != leader.id and leader.id in self._in_sync(tp)):
                await elect_leaders(cluster, 0, [tp])
                if await self._until(lambda: led.partition.is_leader and self._leader_of(tp) == leader.id):
                    self.note(f"finds {leader.name} leading {tp} again, from {led.end} on")
                    await self._produce(cluster, self._record(tp, None), identities[1], 0, to=leader.id)
            await waiting

    def _leader_of(self, tp: TopicPartition) -> int:
        state = self.cluster.partition_states().get(tp)
        return -1 if state is None else state.leader

    def _in_sync(self, tp: TopicPartition) -> Sequence[int]:
        state = self.cluster.partition_states().get(tp)
        return () if state is None else state.isr

    async def _repeats_what_is_being_flushed(self, cluster: AsyncClient) -> None:
        """A client without an answer repeats a record while the leader's disk is busy: no answer may come before the flush
        ends.
        """
        led = await self._find_led(cluster, self.chance.choice(self._partitions))
        if led is None:
            return
        tp, end, log = led.tp, led.end, led.partition.log
        identity = await Transactions(cluster).initialise(None, timeout_ms=_TIMEOUT_MS)
        record = self._record(tp, None)
        async with self.arrive() as other:
            await other.leaders([tp])
            led.process.slow_next_sync(_SYNC_S)
            waiting = self._begin_task(self._produce(other, record, identity, 0, to=led.process.id))
            if await self._until(lambda: led.end > end):
                # With acks=1 the leader does not wait for followers, but for its disk.
                acks = self.chance.choice([-1, 1])
                again = await self._begin_task(
                    self._produce(cluster, record, identity, 0, to=led.process.id, acks=acks)
                )
                is_same = led.is_same_life and led.partition.log is log and led.partition.is_leader
                if isinstance(again, int) and is_same and log.recovery_point <= again:
                    self._broken(
                        "acknowledged records are on the leader's disk",
                        f"{tp} on {led.process.name}: {again} was acknowledged, on disk is {log.recovery_point}",
                    )
            await waiting

    async def _moves_what_is_being_flushed(self, cluster: AsyncClient) -> None:
        """A record waits for the flush after the one in progress, and its log moves to another directory meanwhile."""
        led = await self._find_led(cluster, self.chance.choice(self._partitions))
        if led is None:
            return
        tp, end, log = led.tp, led.end, led.partition.log
        identity = await Transactions(cluster).initialise(None, timeout_ms=_TIMEOUT_MS)
        async with self.arrive() as one, self.arrive() as two:
            for each in (one, two):
                await each.leaders([tp])
            led.process.slow_next_sync(_SYNC_S)
            tasks = []
            for sequence, each in enumerate((one, two)):
                record = self._record(tp, None)
                tasks.append(self._begin_task(self._produce(each, record, identity, sequence, to=led.process.id)))
                expected = end + 1 + sequence
                await self._until(lambda expected=expected: led.end >= expected)  # type: ignore[misc]
            folder = "/two" if log.log_dir == "/one" else "/one"
            self.note(f"moves the log of {tp} on broker {led.process.id} to {folder}, which is being flushed")
            try:
                await alter_replica_log_dirs(cluster, led.process.id, {tp: folder})
            finally:
                outcomes = await asyncio.gather(*tasks)
            for outcome in outcomes:
                is_storage = isinstance(outcome, BrokerRefused) and outcome.code is ErrorCode.KAFKA_STORAGE_ERROR
                if is_storage and led.is_same_life and not led.process.storage.faults:
                    self._broken("a healthy disk refuses nothing", f"{tp} on {led.process.name}: {outcome}")

    # -- coordinators -----------------------------------------------------------------------------------------------------

    async def _moves_as_it_loads(self, cluster: AsyncClient) -> None:
        """The log of a coordinator moves to another directory while its new leader reads it."""
        topic = self.chance.choice([GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC])
        tp = TopicPartition(topic, self.chance.randrange(COORDINATORS))
        leader = self.cluster.brokers.get(self._leader_of(tp))
        if leader is None or not leader.is_serving:
            return
        for broker in await cluster.brokers():
            await cluster.link(broker)  # connect now, so that it takes no time later
        if not self.cluster.expire_session(leader):
            return
        self.note(f"expires the session of {leader.name}, and waits for another broker to load {tp}")
        if not await self._until(lambda: self._loading(tp)):
            return
        found = self._loading(tp)
        log = None if found is None else self.cluster.log_of(found.id, tp)
        if found is not None and log is not None and not found.storage.faults:
            folder = "/two" if log.log_dir == "/one" else "/one"
            self.note(f"moves the log of {tp} on broker {found.id} to {folder}, which is being loaded")
            await alter_replica_log_dirs(cluster, found.id, {tp: folder})

    def _loading(self, tp: TopicPartition) -> BrokerProcess | None:
        parts = "groups" if tp.topic == GROUP_METADATA_TOPIC else "transactions"
        for process in self.cluster.brokers.values():
            assembled = getattr(process.broker, parts, None) if process.is_serving else None
            shard = None if assembled is None else assembled.coordinator._runtime._shards.get(tp.partition)
            if shard is not None and shard.state is ShardState.LOADING:
                return process
        return None

    async def _comes_late_twice(self, cluster: AsyncClient) -> None:
        """A batch and its repetition arrive before and after the marker of their transaction. The coordinator's verification of
        the first one is long on its way, and must not count for the second.
        """
        found = await self._find_apart(cluster, "twice")
        if found is None:
            return
        name, coordinator, led = found
        tp = led.tp
        if not led.partition.log.producers.transaction_verification:
            return
        transactions = Transactions(cluster)
        identity = await transactions.initialise(name, timeout_ms=_TIMEOUT_MS)
        # The first transaction is an ordinary one, which opens the leader's connection to the coordinator.
        sum_ = self._begin("before")
        await transactions.add_partitions(name, identity, [tp])
        first = await self._produce(
            cluster, self._record(tp, sum_), identity, 0, transactional_id=name, to=led.process.id
        )
        await self._settle(cluster, name, identity, sum_, commit=isinstance(first, int))
        answers = answers_to(led.process, coordinator, "transaction-verification")
        if not isinstance(first, int) or answers is None or answers.held is not None or not led.is_same_life:
            return
        sum_, producers = self._begin("twice"), led.partition.log.producers
        record, verifier = self._record(tp, sum_), led.process.broker.transactions.verifier  # type: ignore[union-attr]
        await cluster.retrying("AddPartitionsToTxn", lambda: transactions.add_partitions(name, identity, [tp]))
        async with self.arrive() as one, self.arrive() as two:
            for each in (one, two):
                await each.leaders([tp])
                await each.link(led.process.id)
            tasks = []
            if answers.held is not None:
                return  # another ambusher uses it
            answers.hold()
            try:
                tasks.append(self._begin_task(self._send_in(one, record, identity, name, led)))
                if not await self._until(lambda: answers.held):
                    return
                entry = producers.verification(identity.producer_id)
                await self._settle(cluster, name, identity, sum_, commit=False)
                self.note(f"has ended {name} while {led.process.name} waits for the answer of {coordinator.name}")
                # A marker ends the verification.
                if entry is None or not await self._until(
                    lambda: producers.verification(identity.producer_id) is not entry
                ):
                    return
                asked = len(verifier._in_flight)
                tasks.append(self._begin_task(self._send_in(two, record, identity, name, led)))
                await self._until(lambda: len(verifier._in_flight) > asked, 0.05)
            finally:
                answers.release()
                outcomes = await asyncio.gather(*tasks)
            for outcome in outcomes:
                if isinstance(outcome, int):
                    self._broken("a late batch is refused", f"{tp}: {identity} at {outcome}")

    async def _misses_an_election(self, cluster: AsyncClient) -> None:
        """A coordinator misses that another broker replaced it for a moment: the controller that elected first that broker and
        then the coordinator again did not reach it, and is gone. Meanwhile one of the coordinator's markers waits.
        """
        controller = self.cluster.controller()
        found = None if controller is None else await self._find_apart(cluster, "missed", but=controller)
        if controller is None or found is None:
            return
        name, process, led = found
        tp = led.tp
        assert process.broker is not None
        place = TopicPartition(TRANSACTION_STATE_TOPIC, process.broker.transactions.coordinator.partition_for(name))
        replicas = self.cluster.settled_replicas(place)
        others = [each for each in replicas if each not in (process.id, controller.id)]
        if not others or self._leader_of(place) != process.id or len(self._in_sync(place)) < len(replicas):
            return
        # The first transaction opens a connection for markers.
        for number in range(2):
            sum_ = self._begin("missed")
            transactions = Transactions(cluster)
            identity = await transactions.initialise(name, timeout_ms=_TIMEOUT_MS)
            await transactions.add_partitions(name, identity, [tp])
            outcome = await self._produce(
                cluster, self._record(tp, sum_), identity, 0, transactional_id=name, to=led.process.id
            )
            answers = answers_to(process, led.process, "transaction-markers")
            if number and answers is not None and answers.other.held is None and isinstance(outcome, int):
                await self._decide_unheard(
                    cluster, name, identity, sum_, answers.other, process, controller, place, others
                )
            else:
                await self._settle(cluster, name, identity, sum_, commit=isinstance(outcome, int))

    async def _decide_unheard(
        self,
        cluster: AsyncClient,
        name: str,
        identity: ProducerIdentity,
        sum_: Sum,
        markers: "Line",
        process: BrokerProcess,
        controller: BrokerProcess,
        place: TopicPartition,
        others: Sequence[int],
    ) -> None:
        network, broker = self.cluster.network, process.broker
        assert broker is not None and self.cluster.faults is not None
        markers.hold()
        epoch = broker.replication.control.controller_epoch
        is_cut = False
        try:
            await self._settle(cluster, name, identity, sum_, commit=True)
            self.note(f"moves {place} away from {process.name} and back without its notice")
            network.cut(controller.name, process.name)
            is_cut = True
            for first in (self.chance.choice(others), process.id):
                order = sorted(self.cluster.settled_replicas(place), key=lambda each: each != first)
                await alter_reassignments(cluster, {place: order})
                await self._until(lambda order=order: self.cluster.settled_replicas(place) == tuple(order))  # type: ignore[misc]
                await elect_leaders(cluster, 0, [place])
                if not await self._until(lambda first=first: self._leader_of(place) == first):  # type: ignore[misc]
                    return
                await asyncio.sleep(_LOOKED_AT_S)
            self.cluster.faults.kill(controller)
            await self._until(lambda: broker.replication.control.controller_epoch > epoch, 4.0)
        finally:
            markers.release()
            if is_cut:
                network.mend(controller.name, process.name)

    def _send_in(
        self, cluster: AsyncClient, record: Sent, identity: ProducerIdentity, name: str, led: Led
    ) -> Coroutine[Any, Any, int | ClientError]:
        return self._produce(cluster, record, identity, 1, transactional_id=name, to=led.process.id)

    async def _returns_while_too_few_are_there(self, cluster: AsyncClient) -> None:
        """A static member returns, so that only its member id changes. The change cannot be written, and must not be
        visible.
        """
        self._count += 1
        group = f"{self.name}-statics-{self._count}"
        process, controller = self.cluster.brokers[await cluster.coordinator(group)], self.cluster.controller()
        if not process.is_serving or not self.cluster.network.is_calm:
            return
        assert process.broker is not None
        index = process.broker.groups.coordinator.topic.place_of(group)
        if index is None:
            return
        place = TopicPartition(GROUP_METADATA_TOPIC, index)
        partition = process.broker.replicas.hosted.get(place)
        others = [
            each for each in self._in_sync(place) if each != process.id and self.cluster.brokers[each] is not controller
        ]
        if partition is None or not others or len(self._in_sync(place)) < len(self.cluster.settled_replicas(place)):
            return
        joined = await self._join(cluster, process, group)
        check(joined.error_code)
        sync = SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=group,
            protocol_type="other",
            protocol_name="other",
            assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")],
        )
        check((await cluster.ask(process.id, sync, SyncGroupResponse)).error_code)
        follower = self.cluster.brokers[self.chance.choice(others)]
        await self._set_min_isr(cluster, (AlterOperation.SET, "3"))
        try:
            with self._alone(follower):
                if self.cluster.expire_session(follower) and await self._until(
                    lambda: partition.machine.is_under_min_isr
                ):
                    answer = await self._join(cluster, process, group)
                    self.note(f"returns to {group}, and gets {ErrorCode(answer.error_code).name}")
        finally:
            await self._set_min_isr(cluster, (AlterOperation.DELETE, None))

    async def _set_min_isr(self, cluster: AsyncClient, how: tuple[AlterOperation, str | None]) -> None:
        wish = {"min.insync.replicas": how}
        await alter_configs(cluster, ConfigResourceType.TOPIC, GROUP_METADATA_TOPIC, wish)

    async def _join(self, cluster: AsyncClient, process: BrokerProcess, group: str) -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=6_000,
            rebalance_timeout_ms=2_000,
            group_instance_id=group,
            protocol_type="other",
            protocols=[JoinGroupRequestProtocol(name="other", metadata=b"")],
        )
        return await cluster.ask(process.id, request, JoinGroupResponse)

    # -- our own client ---------------------------------------------------------------------------------------------------

    async def _waits_for_a_connection(self, cluster: AsyncClient) -> None:
        """Batches of a new producer wait for one connection, and the first attempts to open it fail."""
        tp = self.chance.choice(self._partitions)
        config = ProducerConfig(batch_bytes=60, request_timeout_ms=3_000, delivery_timeout_ms=8_000)
        self._count += 1
        name = f"{self.name}-{self._count}"
        async with Producer(cluster, config, clock=self.clock, chance=self.chance) as producer:
            (leader,) = await cluster.leaders([tp])
            host = self.cluster.brokers[leader].host
            attempts = self.chance.choice([1, 2, 2])
            self.note(f"is refused by {host.name} {attempts} times")
            host.turns_away[self.name] = attempts
            deliveries: list[tuple[Sent, Delivery]] = []
            for _ in range(4):
                record = self.oracle.sends(name, tp, is_durable=True, is_idempotent=True)
                deliveries.append((record, await producer.send(tp.topic, record.name.encode(), partition=tp.partition)))
            try:
                await settle(self, deliveries)
            finally:
                host.turns_away.pop(self.name, None)

    async def _writes_too_much(self, cluster: AsyncClient) -> None:
        """One record of a transaction is too large for its topic; another one in the same request was accepted."""
        by_leader = await cluster.leaders(self.cluster.partitions)
        pairs = [
            (small, large)
            for led in by_leader.values()
            for large in led
            if large.topic == FLUSHED_TOPIC
            for small in led
            if small != large
        ]
        if not pairs:
            return
        config = ProducerConfig(
            transactional_id=f"{self.name}-large",
            linger_ms=50,
            transaction_timeout_ms=_TIMEOUT_MS,
            request_timeout_ms=2_000,
            delivery_timeout_ms=4_000,
        )
        sum_ = self._begin("large")
        async with Producer(cluster, config, clock=self.clock, chance=self.chance) as producer:
            assert producer.transaction is not None
            try:
                await producer.transaction.begin()
                deliveries: list[tuple[Sent, Delivery]] = []
                for tp, padding in zip(self.chance.choice(pairs), (0, 2 * _RECORD_BYTES_MAX), strict=True):
                    record = self._record(tp, sum_)
                    value = record.name.encode() + b" " * padding
                    deliveries.append((record, await producer.send(tp.topic, value, partition=tp.partition)))
                await settle(self, deliveries)
                await producer.transaction.abort()
                sum_.fate = Fate.ABORTED
            except ClientError:
                give_up(sum_)
                raise


def answers_to(process: BrokerProcess, other: BrokerProcess, purpose: str) -> "Line | None":
    """Return the other broker's side of a connection that a broker has to it."""
    links = getattr(process.broker, "broker_connections", None)
    for lane in () if links is None else links._lanes:
        _, connection = lane._connections.get(other.id, (None, None))
        if lane._purpose == purpose and connection is not None and connection._transport is not None:
            line: Line = connection._transport._line.other
            return None if line.is_closed or line.is_gone or line.is_reset else line
    return None
