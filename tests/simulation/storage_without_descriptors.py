"""Logs of a process that has hardly a descriptor left, and keeps those that it closes.

What is begun then is done, or left undone and done later. The disk is well: its directory never goes offline.
"""

from collections.abc import Callable

from barnabas.base.errors import LogDirFault, Refused
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage import names
from barnabas.broker.storage.file_handle import FileRange
from barnabas.broker.storage.index_under_repair import IndexUnderRepair
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_types import Origin
from tests.simulation.storage_damage import damage
from tests.simulation.storage_few_descriptors import ScarceWorld
from tests.simulation.storage_ledger import Promise
from tests.simulation.storage_world import COMPACTED, PLAIN, ROOT, StorageWorld

#: More tries than anything takes that goes on.
_TRIES = 20


class PoorWorld(ScarceWorld):
    def __init__(self, seed: int, *, journaled: bool = False) -> None:
        #: Whether the next start finds an index that cannot be right.
        self._is_damaging = False
        super().__init__(seed, journaled=journaled)

    def start(self) -> None:
        super().start()
        self.life.keeps_what_it_closes = True

    def run_poor(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            for _ in range(rng.randint(1, 6)):
                self._lead()
            if rng.random() < 0.3:
                self._roll()
            # About what it takes: with fewer it is not begun, with more it is done.
            change, self.left_max = rng.choice(((self._abort, 3), (self._begin_anew_or_not, 6), (self._find_damage, 6)))
            change()
            assert not self._is_offline, "a process without a free descriptor has given up a disk that is well"
            self.check_now()
            if rng.random() < 0.2:
                self.restart(rng.choice(("power", "kill", "clean")))

    def _abort(self) -> None:
        """The marker is written, and its transaction is aborted, or neither."""
        marker = self.begin_transaction([b"aborted"])
        log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
        end = log.log_end_offset
        self._without_descriptors(lambda: self.append_data(PLAIN, log, ledger, marker, Origin.COORDINATOR))
        if log.log_end_offset == end and not self._is_offline:
            self.append_data(PLAIN, log, ledger, marker, Origin.COORDINATOR)

    def _begin_anew_or_not(self) -> bool:
        """As a follower whose leader has deleted what would come next. Whether it has."""
        log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
        offset = int(log.log_end_offset) + self.rng.randint(0, 5)
        self.tell(f"{PLAIN} begins anew at {offset}")
        ledger.cutting_to, ledger.was_cut = 0, True
        ledger.epoch += 1
        answers: list[Exception | None] = []
        # Late: only what is to be on disk before it is told lacks a descriptor.
        is_late = self.rng.random() < 0.5

        def begin() -> None:
            log.restart_then(offset, is_wanted=lambda: True, then=answers.append)

        def go_on() -> None:
            if not is_late:
                begin()
            self._finish(answers)

        if is_late:
            begin()
        self._without_descriptors(go_on)
        if answers == [None]:
            ledger.batches, ledger.deleted_below = [], offset
        ledger.cutting_to = 1 << 62
        return answers == [None]

    def _find_damage(self) -> None:
        """Indexes have to be built again, and there is no descriptor for that. Whoever asks later gets them."""
        self._roll()
        self._lead()
        self._is_damaging = True
        self.restart("clean")
        self._is_damaging = False
        log = self.log(PLAIN)
        # The connections take what it closes: there is one for the index, and none for the log.
        self.life.keeps_what_it_closes = False
        self._without_descriptors(lambda: self._read(log))
        self.life.keeps_what_it_closes = True
        for _ in range(_TRIES):
            try:
                self._read(log)
                return
            except IndexUnderRepair:
                self.threads.run_pending()
        raise AssertionError(f"{PLAIN} cannot be read: the repair of its indexes never ends")

    def _read(self, log: Log) -> None:
        log.read(log.log_start_offset, max_bytes=100, max_offset=log.log_end_offset)

    def between_lives(self, how: str) -> None:
        if self._is_damaging:
            life = self.disk.life()
            folder = f"{ROOT}/{names.partition_dir(PLAIN)}"
            first = min(name for name in life.listdir(folder) if name.endswith(names.INDEX_SUFFIX))
            self.tell(f"damage {first}")
            damage(life, f"{folder}/{first}", "longer")
            self.disk.process_died(life)

    def check(self, partition: TopicPartition, promise: Promise, how: str) -> None:
        if not self._is_damaging:  # or the first who reads would be this one
            super().check(partition, promise, how)


class PoorFollowerWorld(PoorWorld):
    """A follower has just started, and its leader has deleted what would come next. Nobody has opened its segments yet, but for
    what slow connections are being sent, and those keep what they hold: it gets no descriptor by leaving them."""

    left_max = 10

    def __init__(self, seed: int, *, journaled: bool = False) -> None:
        #: What the last start has to be held against: whoever looks opens all files.
        self._unchecked: list[tuple[TopicPartition, Promise, str]] = []
        super().__init__(seed, journaled=journaled)

    def run_poor_restarts(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            for _ in range(rng.randint(1, 6)):
                self._lead()
            if rng.random() < 0.3:
                self._roll()
            self.restart(rng.choice(("power", "kill", "clean")))
            sending = self._send()
            has_begun_anew = self._begin_anew_or_not()
            assert not self._is_offline, "a process without a free descriptor has given up a disk that is well"
            self._check_start(COMPACTED if has_begun_anew else None)
            self.check_now()
            for each in sending:
                each.release()

    def _send(self) -> list[FileRange]:
        log, rng = self.log(PLAIN), self.rng
        start, end = int(log.log_start_offset), int(log.log_end_offset)
        offsets = [rng.randrange(start, end) for _ in range(rng.randint(0, 3)) if start < end]
        return [each for offset in offsets for each in log.read(offset, max_bytes=1000, max_offset=end).ranges]

    def check(self, partition: TopicPartition, promise: Promise, how: str) -> None:
        self._unchecked.append((partition, promise, how))

    def _check_start(self, only: TopicPartition | None) -> None:
        for partition, promise, how in self._unchecked:
            if only in (None, partition):
                super().check(partition, promise, how)
        self._unchecked.clear()


class PoorCleanerWorld(StorageWorld):
    """Between two steps of a compaction there is no descriptor."""

    def start(self) -> None:
        super().start()
        self.life.keeps_what_it_closes = True

    def run_poor_compactions(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            self.write_keys()
            for _ in range(40):
                self.clock_runs(300)
                for _ in range(rng.randint(1, 4)):
                    if rng.random() < 0.3:
                        self._without(self.threads.run_one)
                    else:
                        self.threads.run_one()
            self.threads.run_pending()
            if rng.random() < 0.3:
                self.restart(rng.choice(("power", "kill", "clean")))

    def _without(self, step: Callable[[], None]) -> None:
        self.life.descriptors_left = 0
        try:
            step()
        except (LogDirFault, Refused) as error:
            self.tell(f"left undone: {error}")
        finally:
            self.life.descriptors_left = None
