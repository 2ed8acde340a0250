"""Logs that move between two directories, back and forth, with a crash at any point: during the copy, while the copy replaces
the log, and while the replaced log still exists.
"""

from collections.abc import Callable

from barnabas.base.ids import TopicPartition
from barnabas.broker.storage.log_types import Origin
from tests.simulation.storage_ledger import Promise
from tests.simulation.storage_world import PLAIN, ROOT, Crash, StorageWorld

OTHER = "/others"


class MovingWorld(StorageWorld):
    roots = (ROOT, OTHER)

    def __init__(self, seed: int, *, journaled: bool = False) -> None:
        #: Offset up to which records were on disk when a copy replaced its log: they must stay there.
        self._flushed = 0
        super().__init__(seed, journaled=journaled)

    def run_moves(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            if rng.random() < 0.4:
                self.crashes_in = rng.randint(1, 60)
            try:
                self._append(rng.randint(0, 4))
                if rng.random() < 0.6:
                    self.log(PLAIN).flusher.flush()
                self._move()
                self._append(rng.randint(0, 3))
                for _ in range(rng.choice((0, 1, 2, 4, 8))):
                    self.threads.run_one()
                if rng.random() < 0.5:
                    self.restart(rng.choice(("power", "power", "kill", "clean")))
            except Crash as crash:
                self.tell(f"crash before a {crash}")
                self.restart(rng.choice(("power", "power", "kill")))

    def _append(self, count: int) -> None:
        for _ in range(count):
            self.append_data(PLAIN, self.log(PLAIN), self.ledgers[PLAIN], self._keyed(), Origin.CLIENT)
            self.log(PLAIN).update_high_watermark(self.log(PLAIN).log_end_offset)

    def _move(self) -> None:
        log = self.log(PLAIN)
        target = next(root for root in self.roots if root != log.log_dir)
        self.manager.delete_future(PLAIN)  # remove the rest of a move that was cut off
        self.tell(f"move {PLAIN} to {target}")
        self.manager.prefer_dir(PLAIN, target)
        future = self.manager.get_or_create_future(PLAIN)
        is_ready = False
        while future.log_end_offset < log.log_end_offset or not is_ready:
            if future.log_end_offset == log.log_end_offset:
                self._wait(lambda then: self.manager.make_ready(future, lambda error: then()))
                is_ready = True
                continue
            missing = [s.data for s in self.ledgers[PLAIN].batches if s.header.base_offset >= future.log_end_offset]
            future.append_as_follower(b"".join(missing[: self.rng.randint(1, 5)]), now_ms=self.clock.now_ms())
            if self.rng.random() < 0.2:
                self._append(1)
        self._wait(lambda then: self.manager.when_old_is_gone(PLAIN, then))
        self._flushed = max(self._flushed, int(log.recovery_point))
        self.tell(f"{PLAIN} is in {target} from now on; {self._flushed} is on disk")
        self.manager.swap_future(PLAIN)

    def _wait(self, ask: Callable[[Callable[[], None]], None]) -> None:
        answers: list[bool] = []
        ask(lambda: answers.append(True))
        while not answers:
            self.threads.run_one()

    def promise(self, partition: TopicPartition) -> Promise:
        promised = super().promise(partition)
        return promised._replace(durable=max(promised.durable, self._flushed)) if partition == PLAIN else promised
