"""A leader whose power is cut at a bad moment, and who leads again: clients get what its disk has kept."""

from functools import partial
from typing import TYPE_CHECKING, Any

from barnabas.base.errors import ErrorCode
from barnabas.base.words import EARLIEST, EARLIEST_LOCAL
from barnabas.broker.storage import names
from barnabas.client.admin.partitions import delete_records, list_offsets
from barnabas.client.consumer import Consumer
from barnabas.client.fetching import ConsumerConfig
from barnabas.testing.simulation.disk_files import File
from barnabas.testing.simulation.process import BrokerProcess
from tests.simulation.load import Client, Persistent
from tests.simulation.lossy_tiered_topic import TP, HistoryReader
from tests.simulation.tier_troubles import LOOK_S, Trouble

if TYPE_CHECKING:
    from tests.simulation.tier_world import TieredCluster


class Return(Trouble):
    """Watches the leader of the topic that may lose records, and cuts its power at a certain moment. Its follower dies just
    before, and stays down until the leader leads again.
    """

    def begin(self) -> None:
        super().begin()
        self._look()

    def _look(self) -> None:
        if self.is_over:
            return
        self._world.after(LOOK_S, self._look)
        state = self._cluster.partition_states().get(TP)
        leader = None if state is None else self._cluster.brokers.get(state.leader)
        if leader is None or not leader.is_serving:
            return
        log = self._cluster.log_of(leader.id, TP)
        if log is None or log.is_closed or not log.is_tiered:
            return
        moment = self._moment(leader, log)
        if moment and self._is_armed and self._may_strike(leader):
            self._world.note(leader.name, moment)
            self._strike(leader)
            self._arm_later(1.0, 2.0)

    def _moment(self, leader: BrokerProcess, log: Any) -> str:
        """Return a description of the moment; empty if it has not come. Called at every look, armed or not."""
        raise NotImplementedError

    def _others(self, leader: BrokerProcess) -> list[BrokerProcess]:
        return [self._cluster.brokers[each] for each in self._cluster.settled_replicas(TP) if each != leader.id]

    def _may_strike(self, leader: BrokerProcess) -> bool:
        faults, others = self._cluster.faults, self._others(leader)
        assert faults is not None
        if not others or not faults.may_kill(leader) or not faults.damage.may_lose(leader):
            return False
        return all(each.is_serving and faults.may_kill(each) for each in others)

    def _strike(self, leader: BrokerProcess) -> None:
        assert self._cluster.faults is not None
        for other in self._others(leader):
            other.kill()
            self._world.after(0.1, partial(self._start_after, leader, other, self._world.now_s + 8.0))
        self._write_back(leader)
        self._cluster.faults.damage.cut(leader)
        leader.cut_power()
        self._world.after(self._world.between(0.02, 0.5), partial(self._start, leader))

    def _write_back(self, leader: BrokerProcess) -> None:
        """Write back what the kernel may have written by itself before the power cut."""

    def _start_after(self, leader: BrokerProcess, other: BrokerProcess, until_s: float) -> None:
        if other.is_up:
            return
        state = self._cluster.partition_states().get(TP)
        leads = state is not None and state.leader == leader.id and leader.is_serving
        if leads or self.is_over or self._world.now_s > until_s:
            self._world.after(self._world.between(0.2, 0.6), partial(self._start, other))
        else:
            self._world.after(0.1, partial(self._start_after, leader, other, until_s))

    def _start(self, process: BrokerProcess) -> None:
        if not process.is_up:
            process.start()


class BackAgain(Return):
    """Several copied segments have left the disk, one right after the other, and no name is synced."""

    def __init__(self, cluster: "TieredCluster") -> None:
        super().__init__(cluster)
        #: (process, life, base offsets of its segments)
        self._before: tuple[str, int, list[int]] = ("", 0, [])
        #: Log files that were just renamed for deletion.
        self._left: list[str] = []

    def clients(self) -> list[Client]:
        return [LocalReader(self._cluster, "local")]

    def _moment(self, leader: BrokerProcess, log: Any) -> str:
        name, life, before = self._before
        now = [int(base) for base in log.segments.base_offsets]
        self._before = (leader.name, leader.lives, now)
        left = [base for base in before if base < now[0]]
        if (name, life) != (leader.name, leader.lives) or len(left) < 2:
            return ""
        self._left = [f"{log.directory}/{names.log_file(base)}{names.DELETED_SUFFIX}" for base in left]
        return f"has just deleted segments {left} of {TP}"

    def _write_back(self, leader: BrokerProcess) -> None:
        """Write names back in any order: here every second one."""
        for path in self._left[1::2]:
            leader.storage.sync_name_of(leader.storage.find(path))


class LocalReader(HistoryReader):
    """Reads from the leader's local log start."""

    async def _live(self) -> None:
        config = ConsumerConfig(auto_offset_reset="none", fetch_max_wait_ms=100)
        async with self.connect(api_timeout_ms=3_000) as cluster, Consumer(cluster, config) as consumer:
            while not self.ending:
                self._since_s = self.world.now_s
                found = (await list_offsets(cluster, {TP: EARLIEST_LOCAL}))[TP]
                if found.error is ErrorCode.NONE:
                    consumer.assign({TP: found.offset})
                    await self._read(consumer, rounds=2)
                await self.pause(0.02, 0.08)


class NewerEpochs(Return):
    """The file of the leader epochs was written and is not synced. Some of its epochs began after the records in the store, in
    records that a start would not read again.
    """

    _file = ""

    def clients(self) -> list[Client]:
        return [Trimmer(self._cluster, "trimmer")]

    def _moment(self, leader: BrokerProcess, log: Any) -> str:
        if not self._is_armed or log.log_start_offset >= log.local_log_start_offset:
            return ""
        if not all(self._has_saved_start(each) for each in (leader, *self._others(leader))):
            return ""
        file, segments = log._epoch_file, log.segments
        self._file = file.path
        here = [each for each in log.epochs.entries if segments.first.base_offset <= each.start_offset]
        if not here:
            # First an election must come, after which nothing is copied for a while.
            return "has copied all epochs" if self._cluster.weather.now == "away" else ""
        if file.path not in file.unsynced.pending()[1]:
            return ""
        point = _saved(leader, log, names.RECOVERY_POINT_CHECKPOINT)
        trusted = segments.at(max(segments.floor(point), 0)).base_offset
        newer = [each for each in here if each.start_offset < trusted]
        return f"has not synced the leader epochs of {TP}, {newer} among them" if newer else ""

    def _has_saved_start(self, process: BrokerProcess) -> bool:
        """Whether the log start is saved: a crash that undoes a deletion is a different trouble."""
        log = self._cluster.log_of(process.id, TP)
        return log is not None and _saved(process, log, names.LOG_START_OFFSET_CHECKPOINT) == log.log_start_offset

    def _write_back(self, leader: BrokerProcess) -> None:
        """Write back the file's name and any part of its contents."""
        leader.storage.sync_name_of(leader.storage.find(self._file))


class Trimmed(Return):
    """The saved leader epochs begin above the log start that is on disk."""

    def clients(self) -> list[Client]:
        return [Trimmer(self._cluster, f"trimmer{number}") for number in range(2)]

    def _moment(self, leader: BrokerProcess, log: Any) -> str:
        kept, start = log.kept_epochs, _saved(leader, log, names.LOG_START_OFFSET_CHECKPOINT)
        if kept is None or not kept.epochs or kept.epochs[0].start_offset <= start:
            return ""
        return f"says on disk that {TP} starts at {start}, and keeps its epochs from {kept.epochs[0].start_offset} on"


def _saved(process: BrokerProcess, log: Any, checkpoint: str) -> int:
    """Return the log's value in a checkpoint."""
    try:
        file = process.storage.find(f"{log.log_dir}/{checkpoint}")
    except FileNotFoundError:
        return 0
    assert isinstance(file, File)
    # Read past the broker's `Life`: the look must not take time there.
    lines = [line.rpartition(" ") for line in file.read(0, file.length).decode().splitlines()]
    return next((int(offset) for name, _, offset in lines if name == f"{TP.topic} {TP.partition}"), 0)


class Trimmer(Persistent):
    """Deletes records that only the store has, one after the other: each deletion moves the beginning of the log's first
    epoch.
    """

    async def _live(self) -> None:
        async with self.connect(api_timeout_ms=3_000) as cluster:
            while not self.ending:
                first, local = [(await list_offsets(cluster, {TP: each}))[TP] for each in (EARLIEST, EARLIEST_LOCAL)]
                if first.error is local.error is ErrorCode.NONE and first.offset + 1 < local.offset:
                    await delete_records(cluster, {TP: first.offset + 1})
                await self.pause(0.05, 0.3)


KINDS: dict[str, type[Trouble]] = {"back": BackAgain, "newer": NewerEpochs, "trimmed": Trimmed}
