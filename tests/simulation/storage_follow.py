"""Logs of followers: truncations, the records that a truncation reads, and fetches."""

from dataclasses import replace

from barnabas.base.errors import Refused
from barnabas.broker.storage import names
from barnabas.wire.record_batch import CRC_AT
from barnabas.wire.records import BatchBuilder
from tests.simulation.storage_damage import DAMAGES, damage
from tests.simulation.storage_ledger import Stored
from tests.simulation.storage_world import CONFIGS, PLAIN, ROOT, StorageWorld


class CutBackWorld(StorageWorld):
    """A leader has lost its end and continues in the same epoch. Its follower, or a copy of its log in another directory, is
    truncated to the leader's end, and follows: only the records show what came before the truncation and what came after it.
    """

    def run_cuts_back(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
            self._follow(rng.randint(2, 6), rolls=0.5)
            if rng.random() < 0.7:
                self.durable(PLAIN)
            if rng.random() < 0.5:
                # The kernel has written everything back: only the truncation may be lost.
                self.disk.write_back()
            epoch = ledger.epoch
            self.cut(PLAIN, rng.choice(ledger.batches[-6:]).header.base_offset)
            ledger.epoch = epoch
            self._follow(rng.randint(1, 8), rolls=rng.choice((0.0, 0.2)))
            if rng.random() < 0.8:
                log.flusher.flush()
            self.restart(rng.choice(("power", "power", "power", "kill")))

    def _follow(self, count: int, *, rolls: float) -> None:
        for _ in range(count):
            self.follow(self._keyed())
            if self.rng.random() < rolls:
                self.log(PLAIN).roll(self.clock.now_ms())


class ManySegmentsWorld(StorageWorld):
    """More segments than may be open at once, and the snapshots of their producers are damaged or lost: a truncation reads as
    much as it needs to know the producers of the remaining records.
    """

    first_configs = {**CONFIGS, "plain": replace(CONFIGS["plain"], segment_bytes=3000, retention_bytes=-1)}
    open_segments_max = 3

    def run_deep_cuts(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            for _ in range(rng.randint(5, 25)):
                self._try_append()
            self.durable(PLAIN)
            self.restart("kill")
            ledger = self.ledgers[PLAIN]
            self.cut(PLAIN, rng.choice(ledger.batches).header.base_offset)
            self.check_now()
            for _ in range(rng.randint(0, 3)):
                self._try_append()
            self.check_now()
            self.restart(rng.choice(("power", "kill", "clean")))

    def _try_append(self) -> None:
        try:
            self.append(PLAIN, self.log(PLAIN), self.ledgers[PLAIN])
        except Refused as refused:
            self.tell(f"refused: {refused}")  # for example a marker of a transaction that was cut off

    def between_lives(self, how: str) -> None:
        if how != "kill":
            return
        life = self.disk.life()
        folder = f"{ROOT}/{names.partition_dir(PLAIN)}"
        for name in life.listdir(folder):
            if name.endswith(names.SNAPSHOT_SUFFIX) and self.rng.random() < 0.9:
                # After a kill, a missing snapshot is valid: the records have the state.
                how_damaged = self.rng.choice((*DAMAGES[names.SNAPSHOT_SUFFIX], "gone"))
                self.tell(f"damage {name}: {how_damaged}")
                damage(life, f"{folder}/{name}", how_damaged)
        self.disk.process_died(life)


class GarbledWorld(StorageWorld):
    """Fetched data is sometimes damaged on its way, or ends in the middle. The follower appends the whole batches, or nothing,
    and fetches again. Its leader has deleted records: the follower begins inside a batch.
    """

    def run_garbled(self, rounds: int) -> None:
        rng = self.rng
        for _ in range(rounds):
            log, ledger = self.log(PLAIN), self.ledgers[PLAIN]
            offset = int(log.log_end_offset)
            if rng.random() < 0.3:
                self.begin_again(PLAIN, log, ledger)
                # The first offset of the leader's batch that contains its log start.
                offset = max(int(log.log_start_offset) - rng.randint(0, 3), 0)
            sent = self._answer(offset)
            while log.log_end_offset < sent[-1].header.next_offset:
                self._fetch([stored for stored in sent if stored.header.last_offset >= log.log_end_offset])
            self.check_now()
            if rng.random() < 0.2:
                self.restart(rng.choice(("power", "kill", "clean")))

    def _answer(self, offset: int) -> list[Stored]:
        sent = []
        for _ in range(self.rng.randint(1, 4)):
            builder = BatchBuilder()
            for _ in range(self.rng.randint(4, 9)):
                builder.append(b"k", self.rng.randbytes(20), timestamp=self.clock.now_ms())
            sent.append(self.sent_by_leader(bytes(builder.build()), offset, self.ledgers[PLAIN].epoch))
            offset = sent[-1].header.next_offset
        return sent

    def _fetch(self, sent: list[Stored]) -> None:
        """Append a response of the leader, which also has its high watermark."""
        log, ledger, rng = self.log(PLAIN), self.ledgers[PLAIN], self.rng
        data = bytearray(b"".join(stored.data for stored in sent))
        chance = rng.random()
        if chance < 0.3:
            data = data[: rng.randrange(len(data))]
            self.tell(f"only {len(data)} bytes arrive")
        elif chance < 0.6:
            self._flip_a_bit(data, sent)
        try:
            log.append_as_follower(data, now_ms=self.clock.now_ms())
        except Refused as refused:
            self.tell(f"refused: {refused}")
        ledger.batches += [stored for stored in sent if stored.header.next_offset <= log.log_end_offset]
        log.update_high_watermark(min(sent[-1].header.next_offset, log.log_end_offset))
        start, end = log.log_start_offset, log.log_end_offset
        assert start <= log.high_watermark <= end, f"{PLAIN} is [{start}, {end}), replicated up to {log.high_watermark}"

    def _flip_a_bit(self, data: bytearray, sent: list[Stored]) -> None:
        """Flip a bit that the checksum of a batch covers: the leader writes its offset and leader epoch, which are not
        covered.
        """
        place = self.rng.randrange(len(sent))
        begin = sum(len(stored.data) for stored in sent[:place])
        at = self.rng.randrange(begin + CRC_AT, begin + len(sent[place].data))
        data[at] ^= 1 << self.rng.randrange(8)
        self.tell(f"a bit of byte {at - begin} of the batch at {sent[place].header.base_offset} is flipped")
