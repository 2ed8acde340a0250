"""A consumer of a share group (KIP-932): many consumers read the same partitions, and decide about each record.

    async with AsyncClient(client_config("localhost:9092")) as cluster:
        async with ShareConsumer(cluster, ShareConfig(group_id="mail"), topics=["orders"]) as consumer:
            while True:
                for record in await consumer.poll(1_000):
                    ...
                await consumer.commit()

A record is locked for the member that got it (`share.record.lock.duration.ms` of the group). Owner: the event loop. Each leader
has one request in flight at most, as the epochs of share sessions demand.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from barnabas.base.errors import RETRIABLE, ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import BrokerRefused, ClientError, check
from barnabas.client.share_membership import ShareMember
from barnabas.client.share_session import (
    AcknowledgementMode,
    AcknowledgeType,
    Decisions,
    ShareConfig,
    SharePartition,
    ShareSession,
    has_renewals,
)
from barnabas.wire.messages.share_acknowledge import ShareAcknowledgeResponse
from barnabas.wire.messages.share_fetch import PartitionData, ShareFetchRequest, ShareFetchResponse
from barnabas.wire.record_batch import BatchHeader, check_crc, iter_batches
from barnabas.wire.records import Record, iter_records

#: Errors after which a share session begins again.
_SESSION_GONE: Final = (ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH)
#: How long a closing consumer waits for its brokers.
_CLOSE_S: Final = 5.0

#: Called with the result of acknowledgements: partition, offsets, and NONE or the error.
Acknowledged = Callable[[TopicPartition, Collection[int], ErrorCode], None]


@dataclass(frozen=True, slots=True)
class ShareRecord:
    """A record that this member holds until it is acknowledged, or its lock times out."""

    partition: TopicPartition
    #: How often the record has been delivered, this delivery included.
    delivery_count: int
    header: BatchHeader
    record: Record

    @property
    def offset(self) -> int:
        return self.record.offset


@dataclass(slots=True)
class _Held:
    """Where a record that is not acknowledged yet came from."""

    leader: int
    partition: SharePartition
    #: Whether the application has asked to keep it: `poll` does not insist on another decision.
    is_renewed: bool = False


@dataclass(slots=True)
class _Leader:
    """What the consumer has with one broker."""

    session: ShareSession
    #: Held during a request: the session has one in flight.
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    fetch: "asyncio.Task[list[tuple[_Held, ShareRecord]]] | None" = None


class ShareConsumer:
    """`async with`, then `poll`. Leaving sends what was decided; the brokers release all other records of this member."""

    def __init__(
        self,
        cluster: AsyncClient,
        config: ShareConfig,
        *,
        topics: Collection[str],
        on_acknowledged: Acknowledged = lambda partition, offsets, code: None,
    ) -> None:
        self._cluster = cluster
        self.config = config
        self._topics = sorted(topics)
        self._on_acknowledged = on_acknowledged
        self._member = ShareMember(
            cluster, config.group_id, topics, rack=config.client_rack, changed=lambda: self._wake()
        )
        self._leaders: dict[int, _Leader] = {}
        #: Records that the application has, without a decision.
        self._held: dict[tuple[TopicPartition, int], _Held] = {}
        self._look_up: asyncio.Task[None] | None = None
        self._waker: asyncio.Future[None] | None = None

    @property
    def member_id(self) -> str:
        return self._member.member_id

    @property
    def assignment(self) -> list[TopicPartition]:
        return sorted(each.partition for each in self._member.assigned)

    async def __aenter__(self) -> Self:
        self._member.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._cluster.io.together([self._end_session(each) for each in list(self._leaders)])
                await self._member.leave()
        except (TimeoutError, ClientError):
            pass  # the group notices that the member is silent
        finally:
            await self._cancel_all()

    # -- the application ------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int) -> list[ShareRecord]:
        """Return records; none if none came in time.

        In implicit mode this accepts the records of the last `poll`. In explicit mode they must have been acknowledged.

        :raises ValueError: in explicit mode, if a record is not acknowledged.
        """
        self._settle()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        while True:
            self._member.check()
            waker = self._waker = loop.create_future()
            self._start_requests()
            waits: list[asyncio.Future[Any]] = [waker]
            waits += [each.fetch for each in self._leaders.values() if each.fetch is not None]
            waits += [self._look_up] if self._look_up is not None else []
            await asyncio.wait(waits, timeout=max(deadline_s - loop.time(), 0), return_when=asyncio.FIRST_COMPLETED)
            records = self._collect()
            if records or loop.time() >= deadline_s:
                self._member.check()
                return records

    def acknowledge(self, record: ShareRecord, kind: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """Decide about a record; the next `commit` or `poll` sends it. After RENEW the record can be acknowledged again.

        :raises ValueError: in implicit mode, or if this member does not hold the record.
        """
        if self.config.acknowledgement_mode is AcknowledgementMode.IMPLICIT:
            raise ValueError("records are acknowledged by poll and commit: share.acknowledgement.mode is implicit")
        held = self._held.get((record.partition, record.offset))
        if held is None:
            raise ValueError(
                f"{record.partition} offset {record.offset} is acknowledged already, or was not delivered here"
            )
        self._decide(held, record.offset, kind)
        held.is_renewed = kind is AcknowledgeType.RENEW
        if not held.is_renewed:
            del self._held[record.partition, record.offset]

    async def commit(self) -> dict[TopicPartition, ErrorCode]:
        """Send all decisions, and wait for the answers. In implicit mode this accepts the records of the last `poll`.

        Return NONE or an error for each partition. INVALID_RECORD_STATE: a lock had timed out, and the record was or will be
        delivered again.
        """
        if self.config.acknowledgement_mode is AcknowledgementMode.IMPLICIT:
            self._settle()
        leaders = [id for id, each in self._leaders.items() if each.session.pending]
        results: dict[TopicPartition, ErrorCode] = {}
        for found in await self._cluster.io.together([self._acknowledge(each) for each in leaders]):
            if isinstance(found, ClientError):
                raise found
            results |= found
        return results

    def _settle(self) -> None:
        """Accept what the last `poll` returned, or check that it is acknowledged."""
        if self.config.acknowledgement_mode is AcknowledgementMode.EXPLICIT:
            left = [key for key, held in self._held.items() if not held.is_renewed]
            if left:
                partition, offset = left[0]
                raise ValueError(f"{len(left)} records are not acknowledged, the first is {partition} offset {offset}")
            return
        for (_, offset), held in self._held.items():
            self._decide(held, offset, AcknowledgeType.ACCEPT)
        self._held.clear()

    def _decide(self, held: _Held, offset: int, kind: AcknowledgeType) -> None:
        self._leaders[held.leader].session.decide(held.partition, offset, kind)

    # -- requests -------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    def _start_requests(self) -> None:
        """Fetch from each leader that has no request in flight. A background task looks for unknown leaders."""
        by_leader: dict[int, set[SharePartition]] = {}
        unknown: set[str] = set()
        for each in self._member.assigned:
            leader = self._cluster.image.leader_of(each.partition)
            if leader < 0:
                unknown.add(each.partition.topic)
            else:
                by_leader.setdefault(leader, set()).add(each)
        for leader, partitions in by_leader.items():
            state = self._leaders.setdefault(leader, _Leader(ShareSession(self._member.member_id)))
            if state.fetch is None:
                state.fetch = asyncio.create_task(self._fetch(leader, partitions), name=f"share fetch {leader}")
        for leader, state in self._leaders.items():
            if leader not in by_leader and state.fetch is None and state.session.pending:
                state.fetch = asyncio.create_task(self._only_acknowledge(leader), name=f"share acknowledge {leader}")
        if unknown and self._look_up is None:
            self._look_up = asyncio.create_task(self._find_leaders(unknown), name="find leaders")

    async def _find_leaders(self, topics: Collection[str]) -> None:
        try:
            await self._cluster.refresh(topics)
        except ClientError as error:
            if not error.retriable:
                raise
        if any(self._cluster.image.leader_of(each.partition) < 0 for each in self._member.assigned):
            await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self.config.retry_backoff_ms / 1000)

    def _collect(self) -> list[ShareRecord]:
        if self._look_up is not None and self._look_up.done():
            look_up, self._look_up = self._look_up, None
            look_up.result()
        records: list[ShareRecord] = []
        for state in self._leaders.values():
            if state.fetch is None or not state.fetch.done():
                continue
            fetch, state.fetch = state.fetch, None
            for held, record in fetch.result():
                self._held[record.partition, record.offset] = held
                records.append(record)
        return records

    async def _only_acknowledge(self, leader: int) -> list[tuple[_Held, ShareRecord]]:
        await self._acknowledge(leader)
        return []

    async def _fetch(self, leader: int, partitions: set[SharePartition]) -> list[tuple[_Held, ShareRecord]]:
        state = self._leaders[leader]
        pending = state.session.pending
        if pending and (state.session.is_new or has_renewals(pending) or not partitions.issuperset(pending)):
            await self._acknowledge(leader)
        async with state.turn:
            decisions = state.session.take()
            request = state.session.fetch(self.config, partitions, decisions)
            try:
                response = await self._cluster.ask(
                    leader,
                    request,
                    ShareFetchResponse,
                    timeout_ms=self._cluster.config.request_timeout_ms + self.config.fetch_max_wait_ms,
                )
                code = ErrorCode(response.error_code)
                if code in _SESSION_GONE or code in RETRIABLE or code is ErrorCode.SHARE_SESSION_LIMIT_REACHED:
                    raise BrokerRefused(code, response.error_message or f"broker {leader}")
                check(code, response.error_message or f"share group {self.config.group_id}")
            except ClientError as error:
                await self._failed(state, decisions, error)
                return []
            state.session.answered()
        return await self._read(leader, request, response, decisions)

    async def _failed(self, state: _Leader, decisions: Mapping[SharePartition, Decisions], error: ClientError) -> None:
        """Begin the session again after a request that has failed: the broker has released the records, or will do so."""
        state.session.lost()
        code = error.code if isinstance(error, BrokerRefused) else ErrorCode.NETWORK_EXCEPTION
        self._report(decisions, dict.fromkeys(decisions, code))
        is_session = isinstance(error, BrokerRefused) and error.code in _SESSION_GONE
        is_full = isinstance(error, BrokerRefused) and error.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
        if not (error.retriable or is_session or is_full):
            raise error
        if not is_session:
            self._cluster.forget_leaders(self._topics)
            await self._pause()

    async def _read(
        self,
        leader: int,
        request: ShareFetchRequest,
        response: ShareFetchResponse,
        decisions: Mapping[SharePartition, Decisions],
    ) -> list[tuple[_Held, ShareRecord]]:
        state = self._leaders[leader]
        known = {(each.topic_id, each.partition.partition): each for each in state.session.partitions | set(decisions)}
        results = dict.fromkeys(decisions, ErrorCode.NONE)
        found: list[tuple[_Held, ShareRecord]] = []
        has_moved = False
        for topic in response.responses:
            for part in topic.partitions:
                partition = known.get((topic.topic_id, part.partition_index))
                if partition is None:
                    continue
                if partition in results:
                    results[partition] = ErrorCode(part.acknowledge_error_code)
                code = ErrorCode(part.error_code)
                if code in RETRIABLE:
                    has_moved = True
                elif code is not ErrorCode.NONE:
                    raise BrokerRefused(code, part.error_message or str(partition.partition))
                else:
                    found += self._records(leader, partition, part)
        self._report(decisions, results)
        if has_moved:
            self._cluster.forget_leaders(self._topics)
            if not found:
                await self._pause()
        return found

    def _records(self, leader: int, partition: SharePartition, part: PartitionData) -> list[tuple[_Held, ShareRecord]]:
        """Return the acquired records. Acquired offsets without a record are acknowledged as gaps."""
        deliveries = {
            offset: each.delivery_count
            for each in part.acquired_records
            for offset in range(each.first_offset, each.last_offset + 1)
        }
        data = part.records
        if not deliveries or data is None:
            return []
        assert isinstance(data, bytes | memoryview)
        found: list[tuple[_Held, ShareRecord]] = []
        for pos, header in iter_batches(data, 0, len(data)):
            if self.config.check_crcs:
                check_crc(data, pos, header)
            if header.is_control:
                continue
            for record in iter_records(data, pos, header):
                count = deliveries.pop(record.offset, None)
                if count is not None:
                    shown = ShareRecord(partition.partition, count, header, record)
                    found.append((_Held(leader, partition), shown))
        for offset in deliveries:
            self._leaders[leader].session.decide(partition, offset, AcknowledgeType.GAP)
        return found

    async def _acknowledge(self, leader: int, *, is_final: bool = False) -> dict[TopicPartition, ErrorCode]:
        """Send the decisions about records of this leader; with `is_final` end the session, too."""
        state = self._leaders[leader]
        async with state.turn:
            decisions = state.session.take()
            if state.session.is_new:
                # The broker has released the records when the session ended.
                results = dict.fromkeys(decisions, ErrorCode.INVALID_RECORD_STATE)
            elif decisions or is_final:
                results = await self._send(leader, state, decisions, is_final=is_final)
            else:
                results = {}
        self._report(decisions, results)
        return {each.partition: code for each, code in results.items()}

    async def _send(
        self, leader: int, state: _Leader, decisions: Mapping[SharePartition, Decisions], *, is_final: bool
    ) -> dict[SharePartition, ErrorCode]:
        request = state.session.acknowledge(self.config.group_id, decisions, is_final=is_final)
        try:
            response = await self._cluster.ask(leader, request, ShareAcknowledgeResponse)
        except ClientError as error:
            if not error.retriable:
                raise
            state.session.lost()
            return dict.fromkeys(decisions, ErrorCode.NETWORK_EXCEPTION)
        code = ErrorCode(response.error_code)
        if code is not ErrorCode.NONE:
            state.session.lost()
            if code not in _SESSION_GONE and code not in RETRIABLE:
                raise BrokerRefused(code, response.error_message or f"share group {self.config.group_id}")
            return dict.fromkeys(decisions, code)
        if is_final:
            state.session.lost()
        else:
            state.session.answered()
        codes = {
            (topic.topic_id, part.partition_index): ErrorCode(part.error_code)
            for topic in response.responses
            for part in topic.partitions
        }
        return {each: codes.get((each.topic_id, each.partition.partition), ErrorCode.NONE) for each in decisions}

    def _report(
        self, decisions: Mapping[SharePartition, Decisions], results: Mapping[SharePartition, ErrorCode]
    ) -> None:
        for partition, of_partition in decisions.items():
            offsets = [offset for offset, kind in of_partition.items() if kind is not AcknowledgeType.GAP]
            if offsets:
                self._on_acknowledged(partition.partition, offsets, results[partition])

    # -- the end --------------------------------------------------------------------------------------------------------

    async def _end_session(self, leader: int) -> None:
        state = self._leaders[leader]
        if state.fetch is not None:
            await asyncio.wait([state.fetch])
        if not state.session.is_new:
            await self._acknowledge(leader, is_final=True)

    async def _cancel_all(self) -> None:
        tasks: list[asyncio.Task[Any]] = [each.fetch for each in self._leaders.values() if each.fetch is not None]
        tasks += [self._look_up] if self._look_up is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
