"""What a simulated broker answers: to followers that fetch, and to clients."""

from collections.abc import Callable

from sim_parts import BATCH, FETCH_WAIT_MS, ServerSession, SimPartition

from barnabas.core.errors import ErrorCode, Refused
from barnabas.core.ids import LeaderEpoch, Offset, TopicPartition
from barnabas.replication.divergence import find_divergence
from barnabas.replication.fetcher_machine import (
    EpochAnswer,
    FetchedPartition,
    OffsetsAnswer,
)
from barnabas.replication.follower_session import FetchEntry, FetchPlan
from barnabas.storage.epoch_cache import EpochEnd


class Serving:
    """The half of a broker that is asked. The other half, `SimBroker`, has the state."""

    # --- leading ---------------------------------------------------------------------------------------------------

    def on_fetch(self, follower: int, plan: FetchPlan, broker_epoch: int, reply: Callable[[object], None]) -> None:
        session_id = plan.session_id
        if plan.is_full:
            self.sessions.pop(session_id, None)
            session_id = self.incarnation * 1_000_000 + self._number()
            session = self.sessions[session_id] = ServerSession(dict(plan.to_send))
        else:
            known = self.sessions.get(session_id)
            if known is None or known.next_epoch != plan.session_epoch:
                code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND if known is None else ErrorCode.INVALID_FETCH_SESSION_EPOCH
                reply((code, 0, []))
                return
            session = known
            session.next_epoch += 1
            for tp, _ in plan.forgotten:
                session.entries.pop(tp, None)
                session.told.pop(tp, None)
            session.entries.update(plan.to_send)
        self._answer_fetch(follower, session_id, session, broker_epoch, reply, may_wait=not plan.is_full)

    def _answer_fetch(
        self,
        follower: int,
        session_id: int,
        session: ServerSession,
        broker_epoch: int,
        reply: Callable[[object], None],
        *,
        may_wait: bool,
    ) -> None:
        results = []
        for tp, entry in session.entries.items():
            result = self._read(tp, entry, follower, broker_epoch)
            news = (result.high_watermark, result.log_start)
            is_taken = result.error_code == ErrorCode.NONE and result.diverging is None
            if not is_taken or result.records or session.told.get(tp) != news:
                results.append(result)
                if is_taken:
                    session.told[tp] = news
                else:
                    # A follower takes no high watermark from an error or a diverging epoch: it must be told again.
                    session.told.pop(tp, None)
        if results or not may_wait:
            reply((ErrorCode.NONE, session_id, results))
            return

        number = self._number()

        def look_again() -> None:
            if self.parked.pop(number, None) is not None:
                self._answer_fetch(follower, session_id, session, broker_epoch, reply, may_wait=False)

        self.parked[number] = (set(session.entries), look_again)
        self.after(FETCH_WAIT_MS, look_again)

    def _wake(self, tp: TopicPartition) -> None:
        for partitions, look_again in list(self.parked.values()):
            if tp in partitions:
                look_again()

    def _read(self, tp: TopicPartition, entry: FetchEntry, follower: int, broker_epoch: int) -> FetchedPartition:
        partition = self.partitions.get(tp)
        if partition is None:
            return FetchedPartition(tp, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        machine = partition.machine
        error = machine.check_leader_epoch(entry.current_leader_epoch)
        if error is ErrorCode.NONE:
            error = machine.check_follower(follower, entry.current_leader_epoch)
        if error is not ErrorCode.NONE:
            return FetchedPartition(tp, error)
        log_end = partition.log_end
        try:
            diverging = find_divergence(
                partition, fetch_offset=entry.fetch_offset, last_fetched_epoch=entry.last_fetched_epoch
            )
            if diverging is not None:
                return FetchedPartition(tp, ErrorCode.NONE, partition.high_watermark, partition.log_start, diverging)
            if not partition.log_start <= entry.fetch_offset <= log_end:
                return FetchedPartition(tp, ErrorCode.OFFSET_OUT_OF_RANGE)
            recorded = machine.record_follower_fetch(
                follower,
                fetch_offset=entry.fetch_offset,
                follower_log_start=entry.log_start,
                broker_epoch=broker_epoch,
                log_end=log_end,
                now_ms=self.world.now_ms,
            )
        except Refused as refused:
            return FetchedPartition(tp, refused.code)
        self._after_change(partition, recorded.propose)
        records = partition.log.read_bytes(entry.fetch_offset, BATCH)
        return FetchedPartition(tp, ErrorCode.NONE, partition.high_watermark, partition.log_start, None, records)

    def on_epoch_end(self, tp: TopicPartition, current_leader_epoch: int, epoch: int) -> EpochAnswer:
        partition = self.partitions.get(tp)
        if partition is None:
            return EpochAnswer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, EpochEnd(LeaderEpoch(-1), Offset(-1)))
        error = partition.machine.check_leader_epoch(current_leader_epoch)
        return EpochAnswer(error, partition.end_offset_for_epoch(epoch))

    def on_list_offsets(self, tp: TopicPartition, current_leader_epoch: int) -> OffsetsAnswer:
        partition = self.partitions.get(tp)
        if partition is None:
            return OffsetsAnswer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        error = partition.machine.check_leader_epoch(current_leader_epoch)
        return OffsetsAnswer(error, partition.log_end, partition.log_start)

    # --- clients ---------------------------------------------------------------------------------------------------

    def on_produce(self, tp: TopicPartition, value: int, acks: int, reply: Callable[[object], None]) -> None:
        partition = self.partitions.get(tp)
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if partition is not None:
            error = partition.machine.check_append(required_acks=acks)
        if partition is None or error is not ErrorCode.NONE:
            reply(error)
            return
        offset = partition.log_end
        partition.log.append(partition.machine.leader_epoch, value)
        partition.machine.record_append(partition.log_end, self.world.now_ms)

        def settled(code: ErrorCode) -> None:
            if code is ErrorCode.NONE and acks == -1:
                self.cluster.oracle.acknowledges(tp, offset, value)
            reply(code)

        if acks == -1:
            partition.waiting_produces.append((offset + 1, settled))
        else:
            settled(ErrorCode.NONE)
        self._after_change(partition, None)
        self._wake(tp)

    def _settle_produces(self, partition: SimPartition) -> None:
        if not partition.waiting_produces:
            return
        still = []
        for required, settled in partition.waiting_produces:
            code = partition.machine.check_replicated(required, partition.machine.leaderships)
            if code is None:
                still.append((required, settled))
            else:
                settled(code)
        partition.waiting_produces = still

    def on_consume(
        self, tp: TopicPartition, leader_epoch: int, offset: int, *, from_leader: bool
    ) -> tuple[ErrorCode, list[tuple[int, int]]]:
        partition = self.partitions.get(tp)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []
        error = partition.machine.check_leader_epoch(leader_epoch, require_leader=from_leader)
        if error is not ErrorCode.NONE:
            return error, []
        return ErrorCode.NONE, partition.log.records[offset : partition.high_watermark]

    def on_list_latest(self, tp: TopicPartition, leader_epoch: int) -> tuple[ErrorCode, int]:
        partition = self.partitions.get(tp)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1
        error = partition.machine.check_leader_epoch(leader_epoch)
        if error is ErrorCode.NONE and partition.machine.high_watermark_lags:
            error = ErrorCode.OFFSET_NOT_AVAILABLE
        return error, partition.high_watermark
