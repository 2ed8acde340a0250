"""A consumer: fetches from the leaders of its partitions, side by side, and decodes what it is asked to decode.

Owner: the event loop. One fetch per leader is under way at any time, so an idle leader's long poll holds back nobody.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from barnabas.base.errors import RETRIABLE, ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import OFFSET_RESETS
from barnabas.client.admin.partitions import list_offsets
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import BrokerRefused, ClientError, check
from barnabas.client.fetching import ConsumerConfig, Fetched, fetch_request, fetched_of
from barnabas.wire.messages.fetch import FetchRequest, FetchResponse


@dataclass(slots=True)
class _Position:
    offset: int
    #: Not fetched while somebody seeks it or its offset is being looked up.
    generation: int = 0


@dataclass(slots=True)
class Consumer:
    """Assign partitions with their offsets, then `poll`. `async with` ends what is under way."""

    cluster: AsyncClient
    config: ConsumerConfig = field(default_factory=ConsumerConfig)
    _positions: dict[TopicPartition, _Position] = field(default_factory=dict)
    #: Where leaders have sent this consumer for its rack (KIP-392): the broker, and until when (the loop's time).
    _preferred: dict[TopicPartition, tuple[int, float]] = field(default_factory=dict)
    #: By broker: the fetch that is under way there.
    _fetches: "dict[int, asyncio.Task[list[Fetched]]]" = field(default_factory=dict)
    #: Leaders that are not known are being looked for.
    _look_up: "asyncio.Task[None] | None" = None
    _generation: int = 0
    #: Set while `poll` waits: ends the wait.
    _waker: "asyncio.Future[None] | None" = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop_fetches()

    # -- positions ------------------------------------------------------------------------------------------------------

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the partitions; answers for others that are under way will be dropped."""
        self._generation += 1
        self._positions = {partition: _Position(offset, self._generation) for partition, offset in offsets.items()}
        self._preferred.clear()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._generation += 1
        self._positions[partition] = _Position(offset, self._generation)

    def position(self, partition: TopicPartition) -> int:
        return self._positions[partition].offset

    @property
    def assignment(self) -> list[TopicPartition]:
        return list(self._positions)

    async def offsets_by_reset(
        self, partitions: Iterable[TopicPartition], time: int | None = None
    ) -> dict[TopicPartition, int]:
        """Where `auto.offset.reset` says to begin, or at this time (`EARLIEST`, `LATEST`)."""
        time = OFFSET_RESETS.get(self.config.auto_offset_reset) if time is None else time
        wanted = list(partitions)
        if time is None:
            raise BrokerRefused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{', '.join(map(str, wanted))}: no valid offset, and auto.offset.reset is {self.config.auto_offset_reset}",
            )
        found = await list_offsets(
            self.cluster, dict.fromkeys(wanted, time), isolation_level=self.config.isolation_level
        )
        for partition, listed in found.items():
            check(listed.error, str(partition))
        return {partition: listed.offset for partition, listed in found.items()}

    # -- fetching -------------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int) -> list[Fetched]:
        """What has arrived; empty when the time is up. Positions move past what is returned."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        waker = self._waker = loop.create_future()
        while not waker.done():
            self._start_fetches()
            waits: list[asyncio.Future[Any]] = [waker, *self._fetches.values()]
            if self._look_up is not None:
                waits.append(self._look_up)
            await asyncio.wait(waits, timeout=max(deadline_s - loop.time(), 0), return_when=asyncio.FIRST_COMPLETED)
            fetched = self._collect()
            if fetched or loop.time() >= deadline_s:
                return fetched
        return []

    def give_back(self, fetched: Iterable[Fetched]) -> None:
        """What `poll` has returned, and nobody has seen: it is fetched again."""
        for each in fetched:
            position = self._positions.get(each.partition)
            if position is not None and position.offset == each.next_position:
                self.seek(each.partition, each.position)

    def wake(self) -> None:
        """End a `poll` that waits: whoever owns the consumer has something to do."""
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    def _start_fetches(self) -> None:
        """From each leader that is known and idle; leaders that are not known are looked for beside it."""
        by_leader: dict[int, list[TopicPartition]] = {}
        unknown: dict[str, None] = {}
        for partition in self._positions:
            leader = self._source_of(partition)
            if leader < 0:
                unknown[partition.topic] = None
            elif leader not in self._fetches:
                by_leader.setdefault(leader, []).append(partition)
        for leader, partitions in by_leader.items():
            self._fetches[leader] = asyncio.create_task(self._fetch(leader, partitions), name=f"fetch-{leader}")
        if unknown and self._look_up is None:
            self._look_up = asyncio.create_task(self._find_leaders(list(unknown)), name="find leaders")

    def _source_of(self, partition: TopicPartition) -> int:
        """The leader, or the replica that it has named, for as long as metadata may be old."""
        if partition in self._preferred:
            broker_id, until_s = self._preferred[partition]
            if broker_id in self.cluster.image.brokers and asyncio.get_running_loop().time() < until_s:
                return broker_id
            del self._preferred[partition]
        return self.cluster.image.leader_of(partition)

    async def _find_leaders(self, topics: list[str]) -> None:
        try:
            await self.cluster.refresh(topics)
        except ClientError as error:
            if not error.retriable:
                raise
        if any(self.cluster.image.leader_of(p) < 0 for p in self._positions if p.topic in topics):
            await asyncio.sleep(self.config.retry_backoff_ms / 1000)

    def _collect(self) -> list[Fetched]:
        """The results of fetches that have ended, without those of partitions that were moved meanwhile."""
        results: list[Fetched] = []
        if self._look_up is not None and self._look_up.done():
            look_up, self._look_up = self._look_up, None
            look_up.result()
        ended = {leader: task for leader, task in self._fetches.items() if task.done()}
        # What others have brought is not lost with a failure: it is there at the next poll.
        for leader in [leader for leader, task in ended.items() if task.exception() is not None]:
            del self._fetches[leader]
            ended[leader].result()
        for leader, task in ended.items():
            del self._fetches[leader]
            for fetched in task.result():
                position = self._positions.get(fetched.partition)
                if position is not None and position.offset == fetched.position:
                    position.offset = fetched.next_position
                    results.append(fetched)
        return results

    async def _fetch(self, leader: int, partitions: list[TopicPartition]) -> list[Fetched]:
        positions = {p: self._positions[p].offset for p in partitions if p in self._positions}
        request = fetch_request(self.config, positions, self.cluster.image, rack_id=self.config.client_rack)
        try:
            response = await self.cluster.ask(
                leader,
                request,
                FetchResponse,
                timeout_ms=self.cluster.config.request_timeout_ms + self.config.fetch_max_wait_ms,
            )
            check(response.error_code)
        except ClientError as error:
            if not error.retriable:
                raise
            for partition in partitions:
                self._preferred.pop(partition, None)
            self.cluster.forget_leaders({partition.topic for partition in partitions})
            await asyncio.sleep(self.config.retry_backoff_ms / 1000)
            return []
        return await self._results(request, response, positions)

    async def _results(
        self, request: FetchRequest, response: FetchResponse, positions: Mapping[TopicPartition, int]
    ) -> list[Fetched]:
        results: list[Fetched] = []
        moved: dict[str, None] = {}
        has_failed = False
        for code, fetched in fetched_of(request, response, positions):
            if code is not ErrorCode.NONE and self._preferred.pop(fetched.partition, None) is not None:
                has_failed = True  # a replica may be behind, or gone: its leader knows better
                continue
            if code is ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._reset(fetched.partition, fetched.position)
            elif code in RETRIABLE:
                has_failed = True
                moved[fetched.partition.topic] = None
            elif code is not ErrorCode.NONE:
                raise BrokerRefused(code, str(fetched.partition))
            elif fetched.preferred_replica >= 0 and fetched.preferred_replica not in self.cluster.image.brokers:
                # It has come since this client last asked. The leader gives no records, and would be asked again and again.
                has_failed = True
                moved[fetched.partition.topic] = None
            elif fetched.preferred_replica >= 0:
                until_s = asyncio.get_running_loop().time() + self.cluster.config.metadata_max_age_ms / 1000
                self._preferred[fetched.partition] = (fetched.preferred_replica, until_s)
            elif fetched.data:
                results.append(fetched)
        if moved:
            self.cluster.forget_leaders(moved)
        if has_failed and not results:
            await asyncio.sleep(self.config.retry_backoff_ms / 1000)
        return results

    async def _reset(self, partition: TopicPartition, at: int) -> None:
        offsets = await self.offsets_by_reset([partition])
        # Somebody may have sought it meanwhile.
        if partition in self._positions and self._positions[partition].offset == at:
            self.seek(partition, offsets[partition])

    async def _stop_fetches(self) -> None:
        tasks: list[asyncio.Task[Any]] = [*self._fetches.values(), *([self._look_up] if self._look_up else [])]
        self._fetches.clear()
        self._look_up = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
