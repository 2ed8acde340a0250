"""All replica fetchers of a broker, and the assignment of partitions to them. Owner: the event loop."""

import asyncio
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from barnabas.base.clock import Clock
from barnabas.base.ids import BrokerId, LeaderEpoch, TopicId, TopicPartition
from barnabas.broker.replication.fetcher import FollowerPartition, ReplicaFetcher, Throttle, TierStarts
from barnabas.broker.replication.fetcher_machine import EndAfter
from barnabas.broker.replication.leader_endpoint import FetcherSettings, LeaderEndpoint


class FetcherManager:
    def __init__(
        self,
        settings: FetcherSettings,
        tasks: asyncio.TaskGroup,
        clock: Clock,
        open_endpoint: Callable[[BrokerId], LeaderEndpoint],
        *,
        throttle: Throttle | None = None,
        end_after: EndAfter | None = None,
    ) -> None:
        """`open_endpoint(broker)` makes an endpoint that connects when it is first used; `tasks` owns the fetchers' tasks.

        With `end_after`, fetchers read ahead; only logs that do not follow a leader of this cluster may do so (a link's
        mirrors).
        """
        self._settings = settings
        self._tasks = tasks
        self._clock = clock
        self._open_endpoint = open_endpoint
        self._throttle = throttle
        self._end_after = end_after
        #: Starts followers in the tier whose leader has the next records there only; None: this broker has no tier.
        self.tier: TierStarts | None = None
        self._fetcher_count = settings.num_replica_fetchers
        self._fetchers: dict[tuple[BrokerId, int], ReplicaFetcher] = {}
        #: The fetcher of each partition, with the arguments of `add`.
        self._homes: dict[TopicPartition, tuple[ReplicaFetcher, BrokerId, FollowerPartition, TopicId, LeaderEpoch]] = {}
        self._takes_no_more = False
        #: Callers inside of `together`, and the fetchers to interrupt when the last one leaves.
        self._holds = 0
        self._held: dict[ReplicaFetcher, None] = {}
        #: Partitions that are not fetched any more, with the reasons, until they are added again.
        self.failed: dict[TopicPartition, str] = {}

    def add(
        self,
        partition: TopicPartition,
        replica: FollowerPartition,
        *,
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
        topic_id: TopicId,
    ) -> None:
        """Fetch a partition from its leader in a leader epoch. If another fetcher has it, it is removed there."""
        if self._takes_no_more:
            return
        self.failed.pop(partition, None)
        fetcher = self._fetcher(leader, partition)
        home = self._homes.get(partition)
        if home is not None and home[0] is not fetcher:
            home[0].remove(partition)
        self._homes[partition] = (fetcher, leader, replica, topic_id, leader_epoch)
        if fetcher.add(partition, replica, topic_id=topic_id, leader_epoch=leader_epoch):
            if self._holds:
                self._held[fetcher] = None
            else:
                fetcher.interrupt()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Interrupt long polls only at the end, so that the next request has all partitions that are added in between.

        A fetcher is rarely interrupted, so the last of thousands of partitions should not wait for the poll that the first one
        began.
        """
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                held, self._held = self._held, {}
                for fetcher in held:
                    fetcher.interrupt()

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions. Nothing is appended to them once this returns."""
        for partition in partitions:
            self.failed.pop(partition, None)
            home = self._homes.pop(partition, None)
            if home is not None:
                home[0].remove(partition)

    def fetcher_of(self, partition: TopicPartition) -> ReplicaFetcher | None:
        home = self._homes.get(partition)
        return None if home is None else home[0]

    def resize(self, fetcher_count: int) -> None:
        """Move partitions to other fetchers, because `num.replica.fetchers` changed."""
        self._fetcher_count = fetcher_count
        with self.together():
            for partition, (fetcher, leader, replica, topic_id, leader_epoch) in list(self._homes.items()):
                if self._fetcher(leader, partition) is not fetcher:
                    self.add(partition, replica, leader=leader, leader_epoch=leader_epoch, topic_id=topic_id)

    @property
    def max_lag(self) -> int:
        return max((fetcher.max_lag for fetcher in self._live()), default=0)

    @property
    def fetcher_count(self) -> int:
        return sum(1 for _ in self._live())

    def take_no_more(self) -> None:
        """Refuse further partitions: the broker is about to stop.

        It need not follow the partitions that it has led. A leader that sees it fetch would wait for it, and delay
        acknowledgements until it notices that the broker is gone.
        """
        self._takes_no_more = True

    def stop(self) -> None:
        """End all fetchers for good: a LeaderAndIsr in progress starts no more. The task group ends their tasks."""
        self._takes_no_more = True
        for fetcher in self._live():
            fetcher.stop()
        self._fetchers.clear()
        self._homes.clear()

    def _live(self) -> Iterable[ReplicaFetcher]:
        return (fetcher for fetcher in self._fetchers.values() if not fetcher.ended)

    def _fetcher(self, leader: BrokerId, partition: TopicPartition) -> ReplicaFetcher:
        number = (zlib.crc32(partition.topic.encode()) + partition.partition) % self._fetcher_count
        key = (leader, number)
        fetcher = self._fetchers.get(key)
        if fetcher is None or fetcher.ended:
            name = f"replica-fetcher-{number}-from-{leader}"
            fetcher = self._fetchers[key] = ReplicaFetcher(
                name,
                self._open_endpoint(leader),
                self._settings,
                self._clock,
                throttle=self._throttle,
                tier=lambda: self.tier,
                end_after=self._end_after,
                on_give_up=self._gave_up,
            )
            self._tasks.create_task(fetcher.run(), name=name)
        return fetcher

    def _gave_up(self, partition: TopicPartition, reason: str) -> None:
        self._homes.pop(partition, None)
        self.failed[partition] = reason
