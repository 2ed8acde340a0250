"""A topic that may lose records and has its history in an object store: lost records must never be read again.

One broker leads in an epoch, so epoch and offset identify a record. The contents of a leader's log are fixed at its election:
the records of the earlier leader up to the end of the new leader's log, and then the records that it writes itself.
`LineageWatch` notes that by epoch and does not take it from the log later: the log's own epochs, and all records that are read,
must agree with it.
"""

import asyncio
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import REMOTE_LOG_METADATA_TOPIC
from barnabas.base.words import EARLIEST, EARLIEST_LOCAL, LATEST, READ_COMMITTED
from barnabas.broker.features.tiered.feature import TieredPlugin
from barnabas.broker.features.tiered.lineage import covered_end, knows_all
from barnabas.broker.replication.fetch_state import Phase
from barnabas.client.admin.partitions import list_offsets
from barnabas.client.consumer import Consumer
from barnabas.client.errors import BrokerRefused
from barnabas.client.fetching import ConsumerConfig, Fetched
from barnabas.testing.simulation.process import BrokerProcess
from barnabas.wire.control_records import ControlType, control_type
from barnabas.wire.records import iter_records
from tests.simulation.load import FORMER, RECKLESS, Persistent

if TYPE_CHECKING:
    from tests.simulation.tier_world import TieredCluster

TP = TopicPartition(RECKLESS, 0)
EVERY_S = 0.02
#: Allowance for the time between the looks at the leaders, which show who led when.
SLACK_S = 0.1

#: (leader epoch, its first offset), ascending in both.
Lineage = list[tuple[int, int]]


def epoch_at(lineage: Lineage, offset: int) -> int | None:
    at = bisect_right(lineage, offset, key=lambda entry: entry[1])
    return lineage[at - 1][0] if at else None


def _is_overruled(broker: Any) -> bool:
    """Whether a follower shares little with its leader and is about to begin where the tier ends. Until then its log is as it
    was, and the leader has removed from the tier what it held of that log.
    """
    fetcher = broker.replication.fetchers.fetcher_of(TP)
    state = None if fetcher is None else fetcher._machine.state(TP)
    return state is not None and state.phase is Phase.TIERING


class LineageWatch:
    """Owner: the world. Reads what brokers hold in memory; changes nothing."""

    def __init__(self, cluster: "TieredCluster") -> None:
        self._cluster = cluster
        self._world = cluster.world
        #: Leader epoch -> lineage of its leader's log.
        self._lineages: dict[int, Lineage] = {}
        #: Leader epoch -> when a broker was last seen to lead in it.
        self._led_s: dict[int, float] = {}
        #: Leader epoch -> its leader's log end at the last look.
        self._ends: dict[int, int] = {}
        #: Number of elections that lost records.
        self.losses = 0
        #: Offsets whose records one election removed and a later one brought back. The copies that only the tier had are gone.
        self._brought_again: list[range] = []
        #: The highest log start that any replica has had. A replica that does not know it may be the only one that is up.
        self._starts: dict[TopicPartition, int] = {}
        #: (broker, partition) -> the state that was checked successfully at the last look.
        self._whole: dict[tuple[int, TopicPartition], object] = {}

    def start(self) -> None:
        self._look()

    def _look(self) -> None:
        self._world.after(EVERY_S, self._look)
        for process in self._cluster.brokers.values():
            replicas = getattr(process.broker, "replicas", None)
            partition = replicas.hosted.get(TP) if process.is_up and replicas is not None else None
            if partition is not None and partition.is_leader and partition.log is not None:
                self._look_at(process.name, partition.machine, partition.log)
            if process.is_up and process.is_ready:
                for tp in self._cluster.tiered_partitions:
                    self._look_at_beginning(process, tp)

    def _look_at_beginning(self, process: BrokerProcess, tp: TopicPartition) -> None:
        """Check that a replica has the leader epochs of the records in the tier, and that a replica that announces them has
        all.
        """
        log = self._cluster.log_of(process.id, tp)
        if log is not None:
            self._starts[tp] = max(log.log_start_offset, self._starts.get(tp, 0))
        if (
            log is None
            or log.is_closed
            or not log.is_tiered
            or not log.size_bytes
            or tp in self._cluster.oracle.excused
        ):
            return
        start, border = log.log_start_offset, log.local_log_start_offset
        if start >= border:
            return
        broker: Any = process.broker
        view = broker.plugin(TieredPlugin).manager.view(tp) if broker.plugins else None
        earliest = log.epochs.earliest
        is_known = earliest is not None and earliest.start_offset <= start
        if not is_known and (tp != FORMER or (view is not None and not knows_all(view, log.epochs, start))):
            self._world.violate(
                "a log's leader epochs are its own",
                f"{tp} on {process.name} begins at {start}, and at {border} on disk; its epochs are {log.epochs.entries}",
            )
        if view is None or self._cluster.oracle.is_log_excused(REMOTE_LOG_METADATA_TOPIC):
            return
        state = (process.lives, id(view), view.version, start, border, len(log.epochs))
        if self._whole.get((process.id, tp)) == state:
            return
        # Another replica may have removed records below its log start, which this one has not heard of yet.
        start = self._starts[tp]
        end = covered_end(view, log.epochs, start, border)
        if start < border and end < border and not (tp == TP and (self.may_lack(end) or _is_overruled(broker))):
            self._world.violate(
                "a replica that reports the tier's end knows all of the tier",
                f"{process.name} says that the tier has {tp} up to {end}, and has it on disk from {border} on",
            )
        self._whole[process.id, tp] = state

    def _look_at(self, name: str, machine: Any, log: Any) -> None:
        epoch = machine.leader_epoch
        lineage = self._lineages.get(epoch)
        if lineage is None:
            lineage = self._lineages[epoch] = self._begins(name, epoch, machine.leader_epoch_start, log)
        self._led_s[epoch] = self._world.now_s
        self._ends[epoch] = log.log_end_offset
        starts = {
            log.log_start_offset,
            *(start for _, start in lineage),
            *(each.start_offset for each in log.epochs.entries),
        }
        for offset in sorted(starts):
            if log.log_start_offset <= offset < log.log_end_offset:
                known = log.epochs.epoch_at(offset)
                if known != epoch_at(lineage, offset):
                    self._world.violate(
                        "a log's leader epochs are its own",
                        f"{TP} on {name} in epoch {epoch}: offset {offset} is of epoch {known}, and was of {lineage}",
                    )

    def _begins(self, name: str, epoch: int, start: int, log: Any) -> Lineage:
        """Return the lineage of a new leader's log: its last record is enough, if a look saw the leader that wrote it."""
        last = log.epochs.epoch_at(start - 1) if start > log.log_start_offset else None
        before = self._lineages.get(last) if last is not None else []
        if before is None:  # it led only between two looks
            before = [(each.epoch, each.start_offset) for each in log.epochs.entries if each.epoch <= (last or 0)]
        kept = [entry for entry in before if entry[1] < start]
        latest = max(self._ends, default=None)
        if latest is not None and (
            start < self._ends[latest] or kept != [entry for entry in self._lineages[latest] if entry[1] < start]
        ):
            self.losses += 1
            lost = f"epoch {latest} had {self._lineages[latest]} up to {self._ends[latest]}"
            self._world.note("lineage", f"{name} leads {TP} in epoch {epoch} from {start}, after {kept}: {lost}")
            both = sorted(at for _, at in (*kept, *self._lineages[latest]) if at < start)
            parting = next((at for at in both if epoch_at(kept, at) != epoch_at(self._lineages[latest], at)), start)
            self._brought_again.append(range(parting, start))
        return [*kept, (epoch, start)]

    def may_lack(self, offset: int) -> bool:
        """Whether the leader may have no record at an offset within its log."""
        metadata = self._cluster.oracle.is_log_excused(REMOTE_LOG_METADATA_TOPIC)
        return metadata or any(offset in each for each in self._brought_again)

    def reads(self, name: str, fetched: Fetched, since_s: float) -> None:
        """Check a fetched record: all of it must come from a leader that led at `since_s` or later."""
        allowed = {epoch: self._lineages[epoch] for epoch, led_s in self._led_s.items() if led_s >= since_s - SLACK_S}
        batches = [header for _, header in fetched.batches()]
        if not batches or not allowed:
            return  # an answer that took longer may come from an earlier leader
        found = [(each.base_offset, each.leader_epoch) for each in batches]
        if not any(all(epoch_at(lineage, offset) == epoch for offset, epoch in found) for lineage in allowed.values()):
            self._world.violate(
                "records that an election removed are not read again", f"{name} read {found} of {TP}, led by {allowed}"
            )
        ends = [fetched.position - 1, *(each.last_offset for each in batches)]
        for before, header in zip(ends, batches, strict=False):
            if header.base_offset > before + 1:
                self._world.violate(
                    "history has no holes", f"{name} read {found} of {TP} from {fetched.position} on, led by {allowed}"
                )


class HistoryReader(Persistent):
    """Reads the whole history again and again, and once at the end from the first offset to the last."""

    cluster: "TieredCluster"
    #: When the last answer arrived: the next one was requested after it, and may have taken long.
    _since_s = 0.0

    async def _live(self) -> None:
        config = ConsumerConfig(auto_offset_reset="earliest", fetch_max_wait_ms=300)
        async with self.connect(api_timeout_ms=10_000) as cluster, Consumer(cluster, config) as consumer:
            self._since_s = self.world.now_s
            while not self.ending:
                consumer.assign({TP: 0})
                await self._read(consumer, rounds=12)
                await self.pause(0.0, 0.5)

    async def _read(self, consumer: Consumer, *, rounds: int) -> None:
        for _ in range(rounds):
            for fetched in await consumer.poll(500):
                self.cluster.lineages.reads(self.name, fetched, self._since_s)
                self._since_s = self.world.now_s
                if consumer.position(TP) >= fetched.high_watermark or self.ending:
                    return


class HistoryAuditor(HistoryReader):
    """Reads the whole history when all is calm."""

    is_done = False

    async def _live(self) -> None:
        async with (
            self.connect() as cluster,
            Consumer(cluster, ConsumerConfig(auto_offset_reset="none")) as consumer,
        ):
            found = await list_offsets(cluster, {TP: EARLIEST})
            end = (await list_offsets(cluster, {TP: LATEST}))[TP]
            if ErrorCode.NONE not in (found[TP].error, end.error):
                raise BrokerRefused(end.error)
            consumer.assign({TP: found[TP].offset})
            while consumer.position(TP) < end.offset:
                try:
                    for fetched in await consumer.poll(1_000):
                        self.cluster.lineages.reads(self.name, fetched, self.world.now_s)
                except BrokerRefused as refused:
                    if refused.code is not ErrorCode.OFFSET_OUT_OF_RANGE or not self.cluster.lineages.may_lack(
                        at := consumer.position(TP)
                    ):
                        raise
                    consumer.assign({TP: max(at + 1, (await list_offsets(cluster, {TP: EARLIEST_LOCAL}))[TP].offset)})
        self.is_done = self.ending = True
        await asyncio.sleep(0)


class AbortAuditor(Persistent):
    """Checks, when all is calm, that aborted records that read_committed readers skip are those of the log's abort markers."""

    cluster: "TieredCluster"
    is_done = False

    async def _live(self) -> None:
        config = ConsumerConfig(auto_offset_reset="none", isolation_level=READ_COMMITTED)
        async with self.connect() as cluster, Consumer(cluster, config) as consumer:
            start = (await list_offsets(cluster, {TP: EARLIEST}))[TP]
            end = (await list_offsets(cluster, {TP: LATEST}, isolation_level=READ_COMMITTED))[TP]
            if ErrorCode.NONE not in (start.error, end.error):
                raise BrokerRefused(end.error)
            consumer.assign({TP: start.offset})
            #: Producer id -> (epoch, offset, whether it was seen) of records that no marker has ended.
            left: dict[int, list[tuple[int, int, bool]]] = {}
            while consumer.position(TP) < end.offset:
                try:
                    for fetched in await consumer.poll(1_000):
                        self._judge(fetched, left)
                except BrokerRefused as refused:
                    at = consumer.position(TP)
                    if refused.code is not ErrorCode.OFFSET_OUT_OF_RANGE or not self.cluster.lineages.may_lack(at):
                        raise
                    left.clear()
                    consumer.assign({TP: max(at + 1, (await list_offsets(cluster, {TP: EARLIEST_LOCAL}))[TP].offset)})
        self.is_done = self.ending = True

    def _judge(self, fetched: Fetched, left: dict[int, list[tuple[int, int, bool]]]) -> None:
        seen = {header.base_offset for _, header in fetched.visible_batches(isolation_level=READ_COMMITTED)}
        for place, header in fetched.batches():
            if not header.is_transactional:
                continue
            if not header.is_control:
                entry = (header.producer_epoch, header.base_offset, header.base_offset in seen)
                left.setdefault(header.producer_id, []).append(entry)
                continue
            marker = next(iter_records(fetched.data, place, header))
            is_abort = control_type(marker.key) is ControlType.ABORT
            ended = left.pop(header.producer_id, [])
            for epoch, offset, is_seen in ended:
                # Records of an earlier epoch lost their marker in an election, so it is not known whether they were aborted.
                if epoch == ended[-1][0] and is_seen is is_abort:
                    self.world.violate(
                        "no aborted record is seen",
                        f"{TP} offset {offset} was {'' if is_seen else 'not '}seen, and the marker at {header.base_offset} "
                        f"{'aborts' if is_abort else 'commits'} it",
                    )
