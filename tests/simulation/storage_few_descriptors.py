"""Logs of a process that runs out of descriptors for a while. An operation succeeds, has no effect, or takes its directory
offline. A log on which an operation had no effect stays open: it must agree with its files, and continue.
"""

import itertools
from collections.abc import Callable

from barnabas.base.errors import LogDirFault, Refused
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage.log import Log
from tests.simulation.storage_world import PLAIN, StorageWorld


class FallibleWorld(StorageWorld):
    """A world whose directories may go offline, while there is a reason for that."""

    def start(self) -> None:
        self._is_offline = self._may_fail = False
        super().start()
        #: The manager no longer has the logs of an offline directory.
        self._logs = {partition: self.manager.get(partition) for partition in self.ledgers}

    def log(self, partition: TopicPartition) -> Log:
        log = self._logs[partition]
        assert log is not None
        return log

    def _dir_failed(self, path: str, partitions: list[TopicPartition]) -> None:
        if not self._may_fail:
            super()._dir_failed(path, partitions)
        self.tell(f"{path} is offline")
        self._is_offline = True


class ScarceWorld(FallibleWorld):
    #: The most descriptors that may be left.
    left_max = 12

    def run_short_of_descriptors(self, rounds: int) -> None:
        rng = self.rng
        changes: tuple[Callable[[], None], ...] = (
            self._lead,
            self._lead,
            self._follow,
            self._follow,
            self._roll,
            self._cut,
            self._flush,
            self._delete_records,
            lambda: self.clock_runs(4000),
            self.threads_run,
        )
        for _ in range(rounds):
            for _ in range(rng.randint(1, 4)):
                self._lead()
            self._without_descriptors(rng.choice(changes))
            if self._is_offline:
                # It was the only directory: the broker ends.
                self.restart("kill")
            else:
                self.check_now()
            if rng.random() < 0.15:
                self.restart(rng.choice(("power", "kill", "clean")))

    def _without_descriptors(self, change: Callable[[], None]) -> None:
        left = self.life.descriptors_left = self.rng.randint(0, self.left_max)
        self.tell(f"{left} descriptors are left")
        self._may_fail = True
        try:
            change()
        except LogDirFault as fault:
            self.tell(f"failed: {fault.cause}")
        except Refused as refused:
            self.tell(f"refused: {refused}")
        finally:
            self.life.descriptors_left = None
            self._may_fail = False

    # -- what it is about to do

    def threads_run(self) -> None:
        self.threads.run_pending()

    def _lead(self) -> None:
        try:
            self.append(PLAIN, self.log(PLAIN), self.ledgers[PLAIN])
        except Refused as refused:
            self.tell(f"refused: {refused}")  # for example a marker of a transaction that was cut off

    def _follow(self) -> None:
        """Append what a leader has sent, of its epoch and of the next one. A follower fetches again what it did not append."""
        log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
        offset, first_epoch = int(log.log_end_offset), max(ledger.epoch, log.latest_epoch or 0)
        sent = []
        for epoch in sorted(self.rng.choices((first_epoch, first_epoch + 1), k=self.rng.randint(2, 5))):
            sent.append(self.sent_by_leader(self._keyed(), offset, epoch))
            offset = sent[-1].header.next_offset
        self.tell(f"{PLAIN} follows: {[(s.header.base_offset, s.header.leader_epoch) for s in sent]}")
        data = b"".join(stored.data for stored in sent)
        for is_again in (False, True):
            try:
                log.append_as_follower(data, now_ms=self.clock.now_ms())
            except LogDirFault:
                if is_again or self._is_offline:
                    raise
                self.life.descriptors_left = None
            else:
                break
        ledger.batches += sent
        ledger.epoch = sent[-1].header.leader_epoch

    def _roll(self) -> None:
        self.tell(f"roll {PLAIN}")
        if self.log(PLAIN).segments.active.size_bytes:
            self.log(PLAIN).roll(self.clock.now_ms())

    def _flush(self) -> None:
        self.tell(f"flush {PLAIN} now")
        self.log(PLAIN).flusher.flush()

    def _delete_records(self) -> None:
        log = self.log(PLAIN)
        log.update_high_watermark(self.rng.randint(int(log.high_watermark), int(log.log_end_offset)))
        offset = self.rng.randint(int(log.log_start_offset), int(log.high_watermark))
        self.tell(f"delete records of {PLAIN} below {offset}")
        log.maybe_increment_log_start_offset(offset)
        log.delete_old_segments(self.clock.now_ms())

    def _cut(self) -> None:
        log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
        bounds = [s.header.base_offset for s in ledger.batches if s.header.base_offset >= log.high_watermark]
        if not bounds:
            return
        offset = self.rng.choice(bounds)
        self.tell(f"truncate {PLAIN} to {offset}")
        ledger.cutting_to = offset
        ledger.was_cut = True
        ledger.epoch += 1
        answers: list[Exception | None] = []
        log.truncate_then(offset, is_wanted=lambda: True, then=answers.append)
        self._finish(answers)
        if self._is_offline:
            return
        if answers == [None]:
            ledger.batches = list(itertools.takewhile(lambda s: s.header.base_offset < offset, ledger.batches))
        ledger.cutting_to = 1 << 62

    def _finish(self, answers: list[Exception | None]) -> None:
        """Finish what was begun: give a descriptor to operations that wait for one."""
        for _ in range(3):
            while not answers and len(self.threads):
                self.threads.run_one()
            if answers or self._is_offline:
                return
            self.life.descriptors_left = None
            self.clock_runs(1000)
        raise AssertionError(f"no callback reports the result for {PLAIN}")
