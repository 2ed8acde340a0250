"""A consumer: fetches from the leaders of its partitions in parallel, and decodes records on request.

Owner: the event loop. At most one fetch per leader is in flight, so the long poll of an idle leader delays no other leader.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class Consumer:
    """Assign partitions with their offsets, then `poll`. Leaving `async with` cancels fetches in flight."""

    cluster: AsyncClient
    config: ConsumerConfig = field(default_factory=ConsumerConfig)
    _positions: dict[TopicPartition, _Position] = field(default_factory=dict)
    #: Replicas that leaders named for this consumer's rack (KIP-392): the broker, and until when (loop time).
    _preferred: dict[TopicPartition, tuple[int, float]] = field(default_factory=dict)
    #: The fetch in flight, by broker.
    _fetches: "dict[int, asyncio.Task[list[Fetched]]]" = field(default_factory=dict)
    #: The search for unknown leaders.
    _look_up: "asyncio.Task[None] | None" = None
    #: Set while `poll` waits; resolving it ends the wait.
    _waker: "asyncio.Future[None] | None" = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop_fetches()

    # -- positions ------------------------------------------------------------------------------------------------------

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the partitions; results of fetches in flight for the old ones are dropped."""
        self._positions = {partition: _Position(offset) for partition, offset in offsets.items()}
        self._preferred.clear()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = _Position(offset)

    def position(self, partition: TopicPartition) -> int:
        return self._positions[partition].offset

    @property
    def assignment(self) -> list[TopicPartition]:
        return list(self._positions)

    async def offsets_by_reset(
        self, partitions: Iterable[TopicPartition], time: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offsets at this time (`EARLIEST`, `LATEST`), or where `auto.offset.reset` says to begin."""
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
        """Return fetched batches; empty if none came in time. Positions move past the returned batches."""
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
        """Undo a `poll` whose result the application has not seen: these records are fetched again."""
        for fetch in fetched:
            position = self._positions.get(fetch.partition)
            if position is not None and position.offset == fetch.next_position:
                self.seek(fetch.partition, fetch.position)

    def wake(self) -> None:
        """End a waiting `poll`, because the owner of the consumer has other work to do."""
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    def _start_fetches(self) -> None:
        """Fetch from each known and idle leader. A background task looks for unknown leaders."""
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
        """Return the leader, or the replica that it named; the choice is valid for `metadata.max.age.ms`."""
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
        """Return the results of finished fetches, except for partitions that were moved in the meantime."""
        results: list[Fetched] = []
        if self._look_up is not None and self._look_up.done():
            look_up, self._look_up = self._look_up, None
            look_up.result()
        ended = {leader: task for leader, task in self._fetches.items() if task.done()}
        # One failed fetch does not lose the results of the others: the next poll returns them.
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
                has_failed = True  # a replica may be behind or offline: ask its leader
                continue
            if code is ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._reset(fetched.partition, fetched.position)
            elif code in RETRIABLE:
                has_failed = True
                moved[fetched.partition.topic] = None
            elif code is not ErrorCode.NONE:
                raise BrokerRefused(code, str(fetched.partition))
            elif fetched.preferred_replica >= 0 and fetched.preferred_replica not in self.cluster.image.brokers:
                # The replica is newer than this client's metadata. Without a refresh the leader would name it again and again.
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
        # The application may have moved the position in the meantime.
        if partition in self._positions and self._positions[partition].offset == at:
            self.seek(partition, offsets[partition])

    async def _stop_fetches(self) -> None:
        tasks: list[asyncio.Task[Any]] = [*self._fetches.values(), *([self._look_up] if self._look_up else [])]
        self._fetches.clear()
        self._look_up = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
