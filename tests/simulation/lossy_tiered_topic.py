"""A topic that may lose records, and has its history in an object store: what is lost is never read again.

Who leads in an epoch is one broker, so that epoch and offset name a record. What a leader's log has is fixed when it is
elected: what an earlier leader's had, up to where its own ends, and then what it writes itself. That is noted here by epoch,
and not taken from what the log says later: the log's own epochs, and whatever is read, must be the same.
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
from barnabas.wire.control_records import ControlType, control_type
from barnabas.wire.records import iter_records
from tests.simulation.load import FORMER, RECKLESS, Persistent
from tests.simulation.process import BrokerProcess

if TYPE_CHECKING:
    from tests.simulation.tier_world import TieredCluster

TP = TopicPartition(RECKLESS, 0)
EVERY_S = 0.02
#: Beside the looks at the leaders, by which it is known who led when.
SLACK_S = 0.1

#: Leader epochs and where each begins, ascending in both.
Lineage = list[tuple[int, int]]


def epoch_at(lineage: Lineage, offset: int) -> int | None:
    at = bisect_right(lineage, offset, key=lambda entry: entry[1])
    return lineage[at - 1][0] if at else None


def _is_overruled(broker: Any) -> bool:
    """A follower that has little in common with its leader. It is about to begin where the tier ends. Until then its log is as
    it was, and what the tier had of it, the leader has removed."""
    fetcher = broker.replication.fetchers.fetcher_of(TP)
    state = None if fetcher is None else fetcher._machine.state(TP)
    return state is not None and state.phase is Phase.TIERING


class LineageWatch:
    """Owner: the world. Reads what brokers hold in memory; changes nothing."""

    def __init__(self, cluster: "TieredCluster") -> None:
        self._cluster = cluster
        self._world = cluster.world
        #: By leader epoch.
        self._lineages: dict[int, Lineage] = {}
        #: When somebody was last seen to lead in an epoch.
        self._led_s: dict[int, float] = {}
        #: Of each epoch, where its leader's log ended when it was last seen.
        self._ends: dict[int, int] = {}
        #: Elections that lost records.
        self.losses = 0
        #: Offsets whose records one election took back and a later one brought again. What was in the tier only is gone.
        self._brought_again: list[range] = []
        #: The highest log start that any replica has had. One that does not know of it may be the only one that is up.
        self._starts: dict[TopicPartition, int] = {}
        #: Broker and partition -> what was whole when it was last looked at.
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
        """Of what is in the tier only a replica knows the leader epochs; and who says what the tier has, knows all of it."""
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
        # Another may have removed what is below its log start, of which this one has not heard yet.
        start = self._starts[tp]
        end = covered_end(view, log.epochs, start, border)
        if start < border and end < border and not (tp == TP and (self.may_lack(end) or _is_overruled(broker))):
            self._world.violate(
                "who says what the tier has knows all of it",
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
        """What a new leader's log has: by its last record alone, if the leader that wrote it was seen."""
        last = log.epochs.epoch_at(start - 1) if start > log.log_start_offset else None
        before = self._lineages.get(last) if last is not None else []
        if before is None:  # it led for a moment only
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
        """Whether the leader may have no record where its log has an offset."""
        metadata = self._cluster.oracle.is_log_excused(REMOTE_LOG_METADATA_TOPIC)
        return metadata or any(offset in each for each in self._brought_again)

    def reads(self, who: str, fetched: Fetched, since_s: float) -> None:
        """What came was asked for since then: it is of one who led since then, all of it."""
        allowed = {epoch: self._lineages[epoch] for epoch, led_s in self._led_s.items() if led_s >= since_s - SLACK_S}
        batches = [header for _, header in fetched.batches()]
        if not batches or not allowed:
            return  # of an answer that was under way for longer than that nothing can be said
        found = [(each.base_offset, each.leader_epoch) for each in batches]
        if not any(all(epoch_at(lineage, offset) == epoch for offset, epoch in found) for lineage in allowed.values()):
            self._world.violate(
                "what an election took back is not read again", f"{who} read {found} of {TP}, led by {allowed}"
            )
        ends = [fetched.position - 1, *(each.last_offset for each in batches)]
        for before, header in zip(ends, batches, strict=False):
            if header.base_offset > before + 1:
                self._world.violate(
                    "history has no holes", f"{who} read {found} of {TP} from {fetched.position} on, led by {allowed}"
                )


class HistoryReader(Persistent):
    """Reads all of it, again and again; at last once from the first offset to the last."""

    cluster: "TieredCluster"
    #: When the last answer came: what comes next was asked for after it, and may have been under way for long.
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
    """When all is calm."""

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
    """When all is calm: what readers of committed records are told to leave out is what the log's own markers abort."""

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
            #: By producer: epoch, offset and whether it was seen, of what no marker has ended.
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
                # What an earlier epoch wrote lost its marker in an election, and nobody can tell what it was.
                if epoch == ended[-1][0] and is_seen is is_abort:
                    self.world.violate(
                        "no aborted record is seen",
                        f"{TP} offset {offset} was {'' if is_seen else 'not '}seen, and the marker at {header.base_offset} "
                        f"{'aborts' if is_abort else 'commits'} it",
                    )
