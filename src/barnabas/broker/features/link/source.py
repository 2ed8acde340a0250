"""The source of a link, as one broker sees it: a client, and a fetcher for each of its brokers that leads a partition.

Owner: the event loop. The fetchers are those of followers (`replication.fetcher`), but send a consumer's Fetch. The source's
metadata names its leaders; it is requested after changes here or there, and at intervals.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, Final

from barnabas.base.clock import Clock
from barnabas.base.errors import BrokenInvariant, ErrorCode, Refused
from barnabas.base.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition
from barnabas.base.words import LATEST as LATEST_TIME
from barnabas.broker.features.link.divergence import last_divergence
from barnabas.broker.features.link.replica import MirrorReplica, end_after
from barnabas.broker.features.link.settings import EARLIEST, LATEST, LinkSettings
from barnabas.broker.features.link.store import LinkStore
from barnabas.broker.replication.fetch_steps import EpochAnswer, EpochQuestion, FetchedPartition, OffsetsAnswer
from barnabas.broker.replication.fetchers import FetcherManager
from barnabas.broker.replication.follower_session import FetchPlan
from barnabas.broker.replication.leader_endpoint import Connect, FetchAnswer, FetcherSettings, RemoteLeader
from barnabas.broker.replication.manager import ReplicaManager
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.security.rates import SimpleRate
from barnabas.broker.zookeeper_client.zk_errors import ZkError
from barnabas.broker.zookeeper_client.znodes_link import MirrorPartition, MirrorState
from barnabas.client.admin.links import describe_links
from barnabas.client.admin.partitions import ListedOffset, list_offsets
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.connection import Connection
from barnabas.client.errors import ClientError
from barnabas.client.image import NO_TOPIC_ID, ClusterImage, TopicInfo

log = logging.getLogger(__name__)

#: The replica id of a consumer.
_NO_BROKER: Final = BrokerId(-1)
_PURPOSE: Final = "link"
PROMOTED: Final = MirrorState.PROMOTED.value
#: A planned promotion ends a mirror when the source's end has not changed for this long.
QUIET_MS: Final = 1_000
_LAST_LOOK_S: Final = 5.0
#: Least time between two requests for the source's metadata.
_PAUSE_S: Final = 0.1
#: Kafka's leader reads its high watermark before it reads records, but may return records up to a newer one. So one answer
#: with more is rare, and two in a row are hardly possible.
_IMPLAUSIBLE_MAX: Final = 2
_SOURCE_FAILURES: Final = (ClientError, OSError, EOFError)


class SourceLeader(RemoteLeader):
    """A broker of the source. New epochs are recorded before their records are appended."""

    def __init__(self, broker: BrokerId, connect: Connect, settings: FetcherSettings, source: "MirrorSource") -> None:
        super().__init__(broker, connect, settings, lambda: BrokerEpoch(-1))
        self._source = source

    async def prepare(self) -> bool:
        """Never truncate on fetch: that is for followers, and not every source supports it for consumers. Instead, ask for the
        end of the last epoch whenever the source's leader epoch changes."""
        try:
            await super().prepare()
        except _SOURCE_FAILURES as error:
            self._source.unreachable(self._broker, error)
            raise
        return False

    async def fetch(self, plan: FetchPlan, *, max_wait_ms: int) -> FetchAnswer:
        try:
            answer = await super().fetch(plan, max_wait_ms=max_wait_ms)
        except _SOURCE_FAILURES as error:
            self._source.unreachable(self._broker, error)
            raise
        await self._source.fetched(answer.partitions)
        return answer

    async def epoch_ends(self, questions: dict[TopicPartition, EpochQuestion]) -> dict[TopicPartition, EpochAnswer]:
        answers = await super().epoch_ends(questions)
        await self._source.require_same({tp.topic for tp in answers})
        self._source.answered({tp: answer.error_code for tp, answer in answers.items()})
        return answers

    async def list_offsets(self, epochs: dict[TopicPartition, LeaderEpoch]) -> dict[TopicPartition, OffsetsAnswer]:
        answers = await super().list_offsets(epochs)
        await self._source.require_same({tp.topic for tp in answers})
        self._source.answered({tp: answer.error_code for tp, answer in answers.items()})
        return answers


class LinkThrottle:
    """`link.throttle.bytes.per.second`: partitions that lag behind wait while the quota is used up."""

    def __init__(self, limit: int | None, now_ms: Callable[[], int]) -> None:
        self._limit = limit
        self._now_ms = now_ms
        self._rate = SimpleRate(windows=11, window_ms=1000)

    def is_throttled(self, partition: TopicPartition) -> bool:
        return self._limit is not None and self._rate.per_second(self._now_ms()) > self._limit

    def record(self, partition: TopicPartition, size: int) -> None:
        self._rate.record(size, self._now_ms())

    def bytes_per_second(self) -> float:
        return self._rate.per_second(self._now_ms())


class _Tasks:
    """Runs fetchers. A fetcher with an unexpected error, perhaps caused by a faulty source, ends alone."""

    def __init__(self, spawn: Spawn, on_failure: Callable[[Exception], None]) -> None:
        self._spawn = spawn
        self._on_failure = on_failure

    def create_task(self, work: Coroutine[Any, Any, None], *, name: str) -> "asyncio.Task[None]":
        return self._spawn(self._guarded(work, name), name)

    async def _guarded(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await work
        except BrokenInvariant:
            raise
        except Exception as error:
            log.exception("%s failed", name)
            self._on_failure(error)


class MirrorSource:
    """The partitions of one link that this broker leads."""

    def __init__(
        self,
        link: str,
        settings: LinkSettings,
        start: str,
        store: LinkStore,
        *,
        make_replica: Callable[[TopicPartition, MirrorPartition], MirrorReplica | None],
        leadership: Callable[[TopicPartition], int],
        source_id: Callable[[str], TopicId],
        is_adopted: Callable[[str], bool],
        on_recreated: Callable[[str], Awaitable[None]],
        clock: Clock,
        spawn: Spawn,
        chance: Random,
    ) -> None:
        """`make_replica` returns None for a partition that this broker no longer leads; `leadership` counts how often this
        broker began to lead one; `source_id` is the id that a topic had at the source when it was found."""
        self.link = link
        self.settings = settings
        self._start = start
        self._store = store
        self._make_replica = make_replica
        self._leadership = leadership
        self._source_id = source_id
        self._is_adopted = is_adopted
        self._on_recreated = on_recreated
        self.client = AsyncClient(settings.client, chance=chance)
        self.throttle = LinkThrottle(settings.throttle_bytes_per_second, lambda: int(clock.monotonic_s() * 1000))
        self._fetcher_settings = FetcherSettings(broker_id=_NO_BROKER)
        self.fetchers = FetcherManager(
            self._fetcher_settings,
            _Tasks(spawn, self._fetcher_failed),  # type: ignore[arg-type]
            clock,
            self._endpoint,
            throttle=self.throttle,
            end_after=end_after,
        )
        #: Partitions that this broker leads; None until the recorded state has been read.
        self.replicas: dict[TopicPartition, MirrorReplica | None] = {}
        #: Partitions whose first offset is not determined yet.
        self._beginning: set[TopicPartition] = set()
        self._changed = asyncio.Event()
        #: Set when the link or one of its topics has changed.
        self.link_changed = asyncio.Event()
        #: An error that affects the source as a whole.
        self.error: str | None = None
        self.errors = 0
        self.bytes = 0

    # -- adding and removing partitions ---------------------------------------------------------------------------------

    def add(self, tp: TopicPartition) -> None:
        known = self.replicas.get(tp)
        if tp in self.replicas and (known is None or known.leads):
            return
        if known is not None:
            self.fetchers.remove([tp])
        self.replicas[tp] = None
        self.look()

    def remove(self, tp: TopicPartition) -> None:
        if tp in self.replicas:
            del self.replicas[tp]
            self.fetchers.remove([tp])

    def look(self) -> None:
        """Request the source's metadata soon."""
        self._changed.set()

    async def wait(self, *, is_urgent: bool) -> None:
        """Wait until something has changed here or there, or the refresh interval has passed."""
        await asyncio.sleep(_PAUSE_S)
        try:
            async with asyncio.timeout(_PAUSE_S if is_urgent else self.settings.refresh_interval_ms / 1000):
                await self._changed.wait()
        except TimeoutError:
            return

    async def back_off(self, pause_s: float) -> None:
        """Pause after a failure. A change of the link itself ends the pause."""
        try:
            async with asyncio.timeout(pause_s):
                await self.link_changed.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        self.fetchers.stop()
        await self.client.close()

    # -- leaders --------------------------------------------------------------------------------------------------------

    async def assign(self) -> None:
        """Give every partition to the fetcher of its leader at the source. Raises `ClientError` and `ZkError`."""
        self._changed.clear()
        await self.load()
        loaded = {tp: replica for tp, replica in self.replicas.items() if replica is not None}
        if not loaded:
            return
        for tp, replica in loaded.items():
            if replica.is_cut and replica.leads:
                try:
                    await replica.recover()
                except Refused as error:
                    self._has_failed([tp], error)
        image = await self.client.refresh({tp.topic for tp in loaded})
        self.error = None
        await self._begin_all(image)
        others = {name for name in {tp.topic for tp in loaded} if self._is_another(image.topics.get(name))}
        self.fetchers.remove([tp for tp in loaded if tp.topic in others])
        with self.fetchers.together():
            for tp, replica in loaded.items():
                if self.replicas.get(tp) is replica and tp.topic not in others:
                    self._assign_one(tp, replica, image)
        for name in others:
            await self._on_recreated(name)

    def _is_another(self, info: TopicInfo | None) -> bool:
        """Whether this is a recreated topic: the same name as the one that was found first, but another id."""
        if info is None or info.error is not ErrorCode.NONE:
            return False
        expected = self._source_id(info.name)
        return NO_TOPIC_ID not in (expected, info.topic_id) and info.topic_id != expected

    def _assign_one(self, tp: TopicPartition, replica: MirrorReplica, image: ClusterImage) -> None:
        if not replica.leads:
            self.remove(tp)
            return
        if replica.recorded.final_offset is not None or tp in self._beginning:
            return  # the mirror has ended, or not begun
        topic = image.topics.get(tp.topic)
        leader = image.leader_of(tp)
        replica.source_leader = leader
        if topic is None or topic.error is not ErrorCode.NONE or leader < 0:
            replica.error = f"{tp} has no leader at the source: {_why(topic)}"
            self.fetchers.remove([tp])
            return
        leader_epoch, known = image.leader_epoch_of(tp), replica.latest_epoch
        if known is not None and 0 <= leader_epoch < known:
            # A broker cut off from its cluster still answers. Following a former leader would truncate the mirror.
            replica.error = (
                f"the source's metadata of {tp} has epoch {leader_epoch}, but the mirror has records of {known}"
            )
            self.fetchers.remove([tp])
            return
        replica.follow_log_start()
        replica.source_epoch = leader_epoch
        self.fetchers.add(
            tp,
            replica,
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(leader_epoch),
            topic_id=TopicId(topic.topic_id),
        )

    async def load(self) -> None:
        """Read the recorded state of partitions that this broker has begun to lead."""
        for tp in [tp for tp, replica in self.replicas.items() if replica is None]:
            leadership = self._leadership(tp)
            known = await self._store.partition(self.link, tp)
            if tp not in self.replicas:
                continue
            if self._leadership(tp) != leadership:
                self.look()  # another broker led meanwhile, and may have written more
                continue
            replica = self._make_replica(tp, known)
            if replica is None:
                del self.replicas[tp]
                continue
            self.replicas[tp] = replica
            self._beginning.add(tp)

    async def _begin_all(self, image: ClusterImage) -> None:
        """Find the first offset of new mirrors: those that start at the end, at a time, or where the logs diverge."""
        for tp in list(self._beginning):
            replica = self.replicas.get(tp)
            try:
                if replica is not None:
                    await self._begin(tp, replica, image)
            except (ClientError, Refused) as error:
                assert replica is not None
                replica.error = str(error)
                self.errors += 1
            else:
                self._beginning.discard(tp)

    async def _begin(self, tp: TopicPartition, replica: MirrorReplica, image: ClusterImage) -> None:
        if self._is_adopted(tp.topic):
            if not replica.recorded.is_parted:
                await self._part(tp, replica)
        elif self._start != EARLIEST and not replica.recorded.epochs and replica.log_end == 0:
            if image.leader_of(tp) < 0:
                # Fail now: the client would wait up to a minute for a leader, and delay the other partitions.
                raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} has no leader at the source")
            await self._begin_later(tp, replica)

    async def _part(self, tp: TopicPartition, replica: MirrorReplica) -> None:
        """Find where this cluster's own log and the source diverge. The source, which has mirrored this log, knows what it
        copied."""
        promotions = [
            (each.final_offset, [(epoch.epoch, epoch.start_offset) for epoch in each.epochs])
            for link in await describe_links(self.client)
            for topic in link.topics
            if topic.name == tp.topic and topic.state == PROMOTED
            for each in topic.partitions
            if each.partition == tp.partition and each.final_offset >= 0
        ]
        if not promotions:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"the source does not report where {tp} diverged: has it mirrored this topic, and does its link still exist?",
            )
        await replica.part_at(*last_divergence(promotions))
        leader_epoch = replica.partition.machine.leader_epoch
        await self._note({tp: dataclasses.replace(replica.recorded, leader_epoch=leader_epoch, is_parted=True)})

    async def _begin_later(self, tp: TopicPartition, replica: MirrorReplica) -> None:
        offset = await self._listed(tp, LATEST_TIME if self._start == LATEST else int(self._start))
        if offset < 0:
            offset = await self._listed(tp, LATEST_TIME)  # no record is that recent
        if offset > 0:
            await replica.truncate_fully_and_start_at(Offset(offset), is_wanted=lambda: True)

    async def _listed(self, tp: TopicPartition, time_ms: int) -> int:
        found = (await list_offsets(self.client, {tp: time_ms}))[tp]
        if found.error is not ErrorCode.NONE:  # an error, not just a missing record
            raise Refused(found.error, f"the source does not report where {tp} begins: {found.error.name}")
        return found.offset

    def _endpoint(self, leader: BrokerId) -> SourceLeader:
        async def connect(broker: BrokerId) -> Connection:
            return await self.client.connection(broker, purpose=_PURPOSE)

        return SourceLeader(leader, connect, self._fetcher_settings, self)

    # -- the end of mirrors ---------------------------------------------------------------------------------------------

    async def are_complete(self, wanted: list[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions that have all of the source's records, if the source has been idle for a while. Wait while
        producers still write."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in wanted:
            replica = self.replicas.get(tp)
            if replica is not None and replica.source_leader >= 0:
                by_leader.setdefault(replica.source_leader, []).append(tp)
        listed = await asyncio.gather(*(self._ends_of(tps) for tps in by_leader.values()))
        complete: list[TopicPartition] = []
        for tp, found in (each for some in listed for each in some.items()):
            replica = self.replicas.get(tp)
            if replica is None or found.error is not ErrorCode.NONE:
                continue
            replica.source_end = max(replica.source_end, found.offset)
            is_quiet = replica.is_quiet(found.offset, for_ms=QUIET_MS)
            # Compare with the high watermark: the next leader has these records, too.
            if is_quiet and replica.partition.high_watermark >= found.offset:
                complete.append(tp)
        return complete

    async def _ends_of(self, wanted: list[TopicPartition]) -> dict[TopicPartition, ListedOffset]:
        """Return the ends of partitions that one broker of the source leads. A failure affects only that broker's
        partitions."""
        try:
            return await list_offsets(self.client, dict.fromkeys(wanted, LATEST_TIME))
        except ClientError as error:
            self._has_failed(wanted, error)
            return {}

    async def finish(self, wanted: list[TopicPartition], replicas: ReplicaManager, *, is_planned: bool) -> None:
        """End mirrors at their current offsets. An error of one does not affect the others."""
        await asyncio.gather(*(self._finish(tp, replicas, is_planned=is_planned) for tp in wanted))

    async def _finish(self, tp: TopicPartition, replicas: ReplicaManager, *, is_planned: bool) -> None:
        replica = self.replicas.get(tp)
        if replica is None or replica.recorded.is_done:
            return
        try:
            await self._finish_one(tp, replica, replicas, is_planned=is_planned)
        except (Refused, ZkError) as error:
            self._has_failed([tp], error)
        else:
            replica.error = None

    def _has_failed(self, tps: list[TopicPartition], error: Exception) -> None:
        self.errors += 1
        for tp in tps:
            if (replica := self.replicas.get(tp)) is not None:
                replica.error = str(error)

    async def _finish_one(
        self, tp: TopicPartition, replica: MirrorReplica, replicas: ReplicaManager, *, is_planned: bool
    ) -> None:
        """End one mirror. If leadership moves, the next leader continues from what is recorded."""
        self.fetchers.remove([tp])
        final = replica.final()
        if not await self._note({tp: final}):
            return
        await replica.abort_transactions(replicas)
        source_end = max(final.source_end, await self._last_look(tp)) if is_planned else final.source_end
        done = dataclasses.replace(final, is_done=True, source_end=source_end)
        if await self._note({tp: done}):
            ends = (final.final_offset, source_end)
            log.info("[link %s] mirror %s ended at offset %d, the source at %d", self.link, tp, *ends)

    async def _last_look(self, tp: TopicPartition) -> int:
        """Return the source's end after the mirror has ended, in case of late writes; -1 if the source is unreachable."""
        try:
            async with asyncio.timeout(_LAST_LOOK_S):
                return (await list_offsets(self.client, {tp: LATEST_TIME}))[tp].offset
        except (ClientError, TimeoutError) as error:
            log.info("[link %s] mirror %s has ended; cannot read the source's end: %r", self.link, tp, error)
            return -1

    # -- callbacks of the fetchers ----------------------------------------------------------------------------------------

    async def fetched(self, partitions: list[FetchedPartition]) -> None:
        """Record new epochs in ZooKeeper before the records are appended. Drop implausible answers."""
        self.answered({each.partition: each.error_code for each in partitions})
        to_note: dict[TopicPartition, MirrorPartition] = {}
        for at, each in enumerate(partitions):
            replica = self.replicas.get(each.partition)
            if replica is None or not each.records:
                continue
            self.bytes += len(each.records)
            objection = replica.objection(each.records, each.high_watermark)
            if objection is not None and replica.implausible_answers <= _IMPLAUSIBLE_MAX:
                partitions[at] = each._replace(records=None)  # drop the records; the next fetch asks for them again
                continue
            if objection is not None:
                partitions[at] = each._replace(error_code=ErrorCode.CORRUPT_MESSAGE, records=None)
                self.errors += 1
                replica.error = objection
                continue
            noted = replica.to_note(each.records)
            if noted is not None:
                to_note[each.partition] = noted
        if not to_note:
            return
        try:
            await self._note(to_note)
        except ZkError as error:
            raise ConnectionError(f"cannot record the source's epochs: {error}") from error

    async def require_same(self, topics: set[str]) -> None:
        """Check that topics were not recreated, before logs are truncated by the source's answers. The requests name topics,
        not ids (as do fetches before Kafka 3.1): only the metadata shows that a topic was recreated. `assign` then stops its
        mirror."""
        try:
            image = await self.client.refresh(topics)
        except ClientError as error:
            raise ConnectionError(f"cannot check whether topics were recreated: {error}") from error
        others = sorted(name for name in topics if self._is_another(image.topics.get(name)))
        if others:
            self.look()
            raise ConnectionError(f"recreated at the source: {', '.join(others)}")

    async def _note(self, partitions: dict[TopicPartition, MirrorPartition]) -> bool:
        """Write epochs. Return False if another broker leads a partition now; this broker will be notified."""
        fenced = await self._store.write_partitions(self.link, partitions)
        for tp in fenced:
            log.info("[link %s] a leader of a later epoch has written the state of %s", self.link, tp)
            self.remove(tp)
        for tp, noted in partitions.items():
            replica = self.replicas.get(tp)
            if replica is not None:
                replica.recorded = noted
        return not fenced

    def answered(self, codes: dict[TopicPartition, int]) -> None:
        """Refresh the metadata after any error, except an offset out of range."""
        for tp, code in codes.items():
            if code in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
                continue
            self.errors += 1
            replica = self.replicas.get(tp)
            if replica is not None:
                known = code in ErrorCode._value2member_map_
                replica.error = f"the source answers with error {ErrorCode(code).name if known else code}"
            self._changed.set()

    def unreachable(self, broker: BrokerId, error: Exception) -> None:
        self.errors += 1
        self.error = f"broker {broker} of the source: {error}"
        self._changed.set()

    def _fetcher_failed(self, error: Exception) -> None:
        self.errors += 1
        self.error = f"a fetcher failed: {error!r}"
        self._changed.set()


def _why(topic: TopicInfo | None) -> str:
    if topic is None:
        return "no such topic"
    return topic.error.name if topic.error is not ErrorCode.NONE else "LEADER_NOT_AVAILABLE"
