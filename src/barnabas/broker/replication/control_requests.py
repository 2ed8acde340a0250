"""Carries out the controller's requests: lead, follow, stop, delete. `control` and `machine` make the decisions.

Owner: the event loop. A request for many partitions is carried out in slices of time, so that other work gets its turn; the
controller sends the next request only after the answer. Partitions to lead come before those to follow: clients wait for them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from barnabas.base.clock import Clock
from barnabas.base.errors import ErrorCode, LogDirFault, Refused
from barnabas.base.host import descriptors
from barnabas.base.ids import (
    ZERO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from barnabas.broker.replication.control import (
    Verdict,
    decide_leader_and_isr,
    decide_stop_replica,
    is_broker_epoch_stale,
    is_controller_epoch_stale,
)
from barnabas.broker.replication.fetchers import FetcherManager
from barnabas.broker.replication.machine import PartitionMachine
from barnabas.broker.replication.manager import ReplicaManager
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.state import PartitionLeadership, Role
from barnabas.broker.storage.log import Log

log = logging.getLogger(__name__)

#: How long partitions are carried out before other tasks get a turn of the event loop. Creating a log takes about a
#: millisecond, a fail-over twenty microseconds. In slices of a few partitions, a fail-over would wait hundreds of times for
#: everything else on the loop, while acknowledgements wait for the fail-over.
SLICE_S = 0.015
#: Partitions that a log line names; the level DEBUG names all.
NAMED_IN_LOG = 20


class Logs(Protocol):
    """The log manager, as control requests see it."""

    def get(self, partition: TopicPartition) -> Log | None: ...
    def get_or_create(self, partition: TopicPartition, *, topic_id: TopicId | None, is_new: bool) -> Log: ...
    def delete(self, partition: TopicPartition) -> None: ...
    def when_forgotten(self, then: Callable[[], None]) -> None: ...


class PartitionOrder(NamedTuple):
    """One partition of a LeaderAndIsr request."""

    tp: TopicPartition
    topic_id: TopicId
    state: PartitionLeadership


class StopOrder(NamedTuple):
    """One partition of a StopReplica request."""

    tp: TopicPartition
    leader_epoch: int
    delete: bool


class _Slices:
    """Splits long work into turns of the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end_s = clock.monotonic_s() + SLICE_S

    @property
    def is_over(self) -> bool:
        return self._clock.monotonic_s() >= self._end_s

    async def let_others(self) -> None:
        await asyncio.sleep(0)
        self._end_s = self._clock.monotonic_s() + SLICE_S


#: Called with (led, followed). The group and transaction coordinators follow leadership with it.
LeadershipListener = Callable[[list[Partition], list[Partition]], None]


class ControlRequests:
    def __init__(
        self,
        broker_id: BrokerId,
        replicas: ReplicaManager,
        fetchers: FetcherManager,
        logs: Logs,
        clock: Clock,
        *,
        broker_epoch: Callable[[], BrokerEpoch],
        make_machine: Callable[[TopicPartition], PartitionMachine],
        is_alive: Callable[[BrokerId], bool],
        load_settings: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        """`load_settings` reads the settings of topics of which this broker gets its first replica."""
        self._load_settings = load_settings
        self._broker_id = broker_id
        self._replicas = replicas
        self._fetchers = fetchers
        self._logs = logs
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._make_machine = make_machine
        self._is_alive = is_alive
        self.controller_epoch = ControllerEpoch(0)
        self._listeners: list[LeadershipListener] = []
        #: Requests that change partitions are carried out one after the other, also if two controllers send at once.
        self._lock = asyncio.Lock()

    def subscribe(self, listener: LeadershipListener) -> None:
        self._listeners.append(listener)

    def check_epochs(self, *, controller_epoch: int, broker_epoch: int) -> ErrorCode:
        """Check the broker epoch and the controller epoch of a controller's request. Remember a newer controller epoch."""
        if is_broker_epoch_stale(broker_epoch, self._broker_epoch()):
            return ErrorCode.STALE_BROKER_EPOCH
        if is_controller_epoch_stale(controller_epoch, self.controller_epoch):
            log.warning(
                "[controller] refusing a request with the controller epoch %d, which is over: the current epoch is %d",
                controller_epoch,
                self.controller_epoch,
            )
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self.controller_epoch = ControllerEpoch(controller_epoch)
        return ErrorCode.NONE

    # -- LeaderAndIsr -------------------------------------------------------------------------------------------------

    async def leader_and_isr(
        self, orders: Iterable[PartitionOrder], *, controller_epoch: int, broker_epoch: int
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        async with self._lock:
            error = self.check_epochs(controller_epoch=controller_epoch, broker_epoch=broker_epoch)
            if error is not ErrorCode.NONE:
                return error, {}
            orders = sorted(orders, key=lambda order: order.state.leader != self._broker_id)
            await self._load_settings({o.tp.topic for o in orders if self._logs.get(o.tp) is None})
            errors: dict[TopicPartition, ErrorCode] = {}
            led: list[Partition] = []
            followed: list[Partition] = []
            slices = _Slices(self._clock)
            try:
                with self._fetchers.together():
                    for order in orders:
                        if slices.is_over:
                            await slices.let_others()
                            if is_controller_epoch_stale(controller_epoch, self.controller_epoch):
                                return ErrorCode.STALE_CONTROLLER_EPOCH, errors
                        errors[order.tp] = self._carry_out(order, led, followed)
            finally:
                # Report a partial result, too: a newer controller repeats the same leader epochs, and then nothing changes.
                self._notify_listeners(led, followed)
            return ErrorCode.NONE, errors

    def _carry_out(self, order: PartitionOrder, led: list[Partition], followed: list[Partition]) -> ErrorCode:
        partition = self._replicas.hosted.get(order.tp) or self._new_partition(order.tp)
        known_log = self._logs.get(order.tp)
        decision = decide_leader_and_isr(
            order.state,
            local_broker=self._broker_id,
            current_leader_epoch=partition.machine.leader_epoch,
            request_topic_id=order.topic_id,
            log_topic_id=(known_log.topic_id if known_log is not None else None) or ZERO_TOPIC_ID,
            is_offline=partition.machine.role is Role.OFFLINE,
        )
        try:
            match decision.verdict:
                case Verdict.BECOME_LEADER:
                    self._lead(partition, order)
                    led.append(partition)
                case Verdict.BECOME_FOLLOWER:
                    self._follow(partition, order)
                    followed.append(partition)
                case Verdict.ASSIGN_TOPIC_ID:
                    self._assign_topic_id(partition, order.topic_id)
                case Verdict.FORGET_FETCH_TOPIC_ID:
                    fetcher = self._fetchers.fetcher_of(order.tp)
                    if fetcher is not None:
                        fetcher.set_topic_id(order.tp, ZERO_TOPIC_ID)
                case Verdict.REFUSE:
                    return decision.error
        except (LogDirFault, Refused) as error:
            # Only this partition fails: the next ones in the request may be on a healthy disk.
            log.error("[partition %s] cannot open the log: look at its log directory: %s", order.tp, error)
            code = _code_of(error)
            if code is ErrorCode.KAFKA_STORAGE_ERROR:
                self._fetchers.remove([order.tp])
                partition.machine.go_offline()
                self._replicas.hosted.add(partition)
                self._replicas.hosted.wake_all(partition)
            return code
        self._replicas.hosted.add(partition)
        return ErrorCode.NONE

    def _new_partition(self, tp: TopicPartition) -> Partition:
        return Partition(
            tp, self._make_machine(tp), self._clock, on_high_watermark=self._replicas.hosted.high_watermark_moved
        )

    def _open_log(self, partition: Partition, order: PartitionOrder) -> None:
        topic_id = order.topic_id if order.topic_id != ZERO_TOPIC_ID else None
        if partition.log is None:
            partition.attach(self._logs.get_or_create(order.tp, topic_id=topic_id, is_new=order.state.is_new))
        if topic_id is not None:
            partition.topic_id = topic_id

    def _assign_topic_id(self, partition: Partition, topic_id: TopicId) -> None:
        try:
            partition.local_log.assign_topic_id(topic_id)
        except LogDirFault as fault:
            if not descriptors.are_exhausted(fault.cause):
                raise
            # The log serves without the id, and gets it with the next LeaderAndIsr that has it.
            log.warning(
                "[partition %s] the topic id could not be written and is written later; look at the log directory: %s",
                partition.tp,
                fault,
            )
        partition.topic_id = topic_id

    def _lead(self, partition: Partition, order: PartitionOrder) -> None:
        self._fetchers.remove([order.tp])
        self._open_log(partition, order)
        # The very next epoch is the same leadership with another ISR. If epochs are missing, another broker led in between.
        led_before = partition.is_leader and partition.machine.leader_epoch >= order.state.leader_epoch - 1
        partition.become_leader(order.state, now_ms=self._clock.now_ms())
        log.debug("[partition %s] leading in epoch %d, ISR %s", order.tp, order.state.leader_epoch, order.state.isr)
        if not led_before:
            self._replicas.appends.elected(partition)
        self._replicas.hosted.wake_all(partition)

    def _follow(self, partition: Partition, order: PartitionOrder) -> None:
        self._open_log(partition, order)
        must_refetch = partition.become_follower(order.state)
        log.debug("[partition %s] following %s in epoch %d", order.tp, order.state.leader, order.state.leader_epoch)
        self._replicas.hosted.wake_all(partition)
        leader = order.state.leader
        if leader < 0 or not self._is_alive(leader):
            self._fetchers.remove([order.tp])
        elif must_refetch:
            self._fetchers.add(
                order.tp,
                partition,
                leader=leader,
                leader_epoch=LeaderEpoch(order.state.leader_epoch),
                topic_id=partition.topic_id or ZERO_TOPIC_ID,
            )

    # -- StopReplica --------------------------------------------------------------------------------------------------

    async def stop_replicas(
        self, orders: Iterable[StopOrder], *, controller_epoch: int, broker_epoch: int
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        async with self._lock:
            error = self.check_epochs(controller_epoch=controller_epoch, broker_epoch=broker_epoch)
            if error is not ErrorCode.NONE:
                return error, {}
            errors: dict[TopicPartition, ErrorCode] = {}
            stopped: list[Partition] = []
            slices = _Slices(self._clock)
            for order in orders:
                if slices.is_over:
                    await slices.let_others()
                errors[order.tp] = self._stop(order, stopped)
            self._notify_listeners([], stopped)
        # The controller creates a topic of the same name only after the answer, so wait until the old one is forgotten.
        forgotten = asyncio.Event()
        self._logs.when_forgotten(forgotten.set)
        await forgotten.wait()
        return ErrorCode.NONE, errors

    def _stop(self, order: StopOrder, stopped: list[Partition]) -> ErrorCode:
        partition = self._replicas.hosted.get(order.tp)
        if partition is not None:
            verdict = decide_stop_replica(
                request_leader_epoch=order.leader_epoch,
                current_leader_epoch=partition.machine.leader_epoch,
                is_offline=partition.machine.role is Role.OFFLINE,
            )
            if verdict is not ErrorCode.NONE:
                return verdict
            self._fetchers.remove([order.tp])
            partition.machine.stop()
            stopped.append(partition)
            if order.delete:
                self._replicas.hosted.remove(order.tp)
                partition.log = None
            self._replicas.hosted.wake_all(partition)
        if order.delete:
            try:
                self._logs.delete(order.tp)
            except (LogDirFault, Refused) as error:
                log.error("[partition %s] cannot delete the log: look at its log directory: %s", order.tp, error)
                return _code_of(error)
            log.info("[partition %s] deleted the log", order.tp)
        return ErrorCode.NONE

    # -- UpdateMetadata -----------------------------------------------------------------------------------------------

    def stop_strays(self, elsewhere: Iterable[tuple[TopicPartition, bytes, int, Sequence[int]]]) -> None:
        """Stop partitions that the broker leads or follows although their replicas are elsewhere.

        `elsewhere` lists partitions without a replica on this broker: topic id, leader epoch, replicas. A partition stops if it
        has an earlier epoch here, or belongs to a former topic of that name. Its replicas were moved while this broker was
        disconnected but not restarted, and the controller sends a returning broker only the partitions that it has now. As a
        leader it would go on taking records that no consumer will ever read.
        """
        stopped: list[Partition] = []
        for tp, topic_id, leader_epoch, replicas in elsewhere:
            partition = self._replicas.hosted.get(tp)
            if partition is None or partition.machine.role not in (Role.LEADER, Role.FOLLOWER):
                continue
            is_former = topic_id != ZERO_TOPIC_ID and partition.topic_id not in (None, topic_id)
            if is_former or leader_epoch > partition.machine.leader_epoch:
                log.warning(
                    "[partition %s] has moved to the brokers %s and is not served here any more", tp, list(replicas)
                )
                stopped.append(partition)
        self.stop_serving(stopped)

    def stop_serving(self, partitions: Sequence[Partition]) -> None:
        """Neither lead nor follow these partitions until the controller says so again."""
        self._fetchers.remove([each.tp for each in partitions])
        for partition in partitions:
            partition.machine.stop()
            self._replicas.hosted.wake_all(partition)
        self._notify_listeners([], list(partitions))

    # -- brokers come and go ------------------------------------------------------------------------------------------

    def leaders_changed_liveness(self) -> None:
        """UpdateMetadata changed the live brokers: follow leaders that came back, and stop waiting for followers that are
        gone."""
        self._replicas.tick()
        with self._fetchers.together():
            for partition in self._replicas:
                self._follow_again(partition)

    def _follow_again(self, partition: Partition) -> None:
        machine = partition.machine
        if machine.role is not Role.FOLLOWER or machine.leader < 0:
            return
        is_followed = self._fetchers.fetcher_of(partition.tp) is not None
        if self._is_alive(machine.leader) and not is_followed:
            self._fetchers.add(
                partition.tp,
                partition,
                leader=machine.leader,
                leader_epoch=machine.leader_epoch,
                topic_id=partition.topic_id or ZERO_TOPIC_ID,
            )

    def went_offline(self, gone: list[Partition]) -> None:
        """Stop serving partitions whose disk failed. The controller sends this broker no request for that; it elects other
        leaders."""
        self._notify_listeners([], gone)

    def _notify_listeners(self, led: list[Partition], followed: list[Partition]) -> None:
        if led or followed:
            # Write one line for all: a fail-over may move thousands of partitions, and clients wait for it.
            log.info("[replication] leading %s; following %s", _named(led), _named(followed))
            for listener in self._listeners:
                listener(led, followed)


def _code_of(error: LogDirFault | Refused) -> ErrorCode:
    return error.code if isinstance(error, Refused) else ErrorCode.KAFKA_STORAGE_ERROR


def _named(partitions: list[Partition]) -> str:
    """Name the first few partitions with their leader epochs, and count the others."""
    named = [f"{each.tp} in epoch {each.machine.leader_epoch}" for each in partitions[:NAMED_IN_LOG]]
    if len(partitions) > NAMED_IN_LOG:
        named.append(f"{len(partitions) - NAMED_IN_LOG} more")
    return ", ".join(named) or "none"
