"""Random changes of a log whose process has few descriptors, or none: the log holds what it took, and no disk is at fault."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import ErrorCode, LogDirFault, Refused
from barnabas.base.host import descriptors
from barnabas.broker.storage.index_repair import IndexRepairs
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_types import Origin
from barnabas.wire.records import end_txn_marker
from tests.unit.broker.storage.log.log_support import NOW_MS, Partition, batch, contents
from tests.unit.broker.storage.log.test_descriptors import BusyProcess

INDEX_BYTES, INTERVALS = (24, 60, 1200), (50, 100, 300)


class World:
    """`held`: the values that the log must have, by their offsets."""

    def __init__(self, root: Path, seed: int) -> None:
        rng = self.rng = Random(seed)
        self.disk = BusyProcess()
        config = LogConfig(
            segment_bytes=rng.choice((600, 2000)),
            index_interval_bytes=rng.choice(INTERVALS),
            segment_index_bytes=rng.choice(INDEX_BYTES),
            file_delete_delay_ms=rng.choice((0, 1000)),
        )
        self.partition = Partition(root, config, disk=self.disk, max_open_segments=rng.choice((2, 5, 50)))
        self.partition.env.pool.repair = IndexRepairs(self.partition.env).begin
        self.held: dict[int, bytes] = {}
        self.epoch = 0
        self.changes = (self.lead, self.lead, self.follow, self.transact, self.roll, self.cut, self.restart,
                        self.delete, self.flush, self.configure, self.look_up, self.open_again)  # fmt: skip

    @property
    def log(self) -> Log:
        return self.partition.log

    def value(self) -> bytes:
        return self.rng.randbytes(self.rng.choice((3, 80, 300)))

    def step(self) -> None:
        self.disk.free = self.rng.choice((None, None, 0, 1, 2, 3, 4, 6, 9))
        try:
            self.rng.choice(self.changes)()
        except LogDirFault as fault:
            assert descriptors.are_exhausted(fault.cause), fault
        except Refused as refused:
            assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR  # an index is being rebuilt, or cannot be
        self.disk.free = None
        assert all(descriptors.are_exhausted(fault.cause) for fault in self.partition.faults)
        found = {entry.offset: entry.value for entry in contents(self.log)}
        for offset, value in self.held.items():
            assert offset < self.log.log_start_offset or found.get(offset) == value

    def lead(self) -> None:
        value, stamp = self.value(), NOW_MS + self.rng.randint(-5000, 5000)
        self.held[self.partition.append(value, epoch=self.epoch, timestamp=stamp)] = value

    def follow(self) -> None:
        self.epoch += self.rng.choice((0, 0, 1))
        sent = {self.log.log_end_offset + number: self.value() for number in range(self.rng.randint(1, 5))}
        batches = [batch([value], base_offset=at, leader_epoch=self.epoch) for at, value in sent.items()]
        self.log.append_as_follower(b"".join(batches), now_ms=NOW_MS)
        self.held |= sent

    def transact(self) -> None:
        """Begin a transaction, or end the one that is open."""
        producer_id, log = self.rng.randint(1, 3), self.log
        entry = log.producers.entry(producer_id)
        if entry is not None and entry.txn_first_offset is not None:
            commit = self.rng.random() < 0.3
            marker = end_txn_marker(
                commit=commit, coordinator_epoch=0, producer_id=producer_id, producer_epoch=0, timestamp=NOW_MS
            )
            log.append_as_leader(bytearray(marker), leader_epoch=self.epoch, now_ms=NOW_MS, origin=Origin.COORDINATOR)
            return
        sequence = 0 if entry is None or entry.last_sequence < 0 else entry.last_sequence + 1
        begin = batch([b"t"], producer_id=producer_id, producer_epoch=0, sequence=sequence, transactional=True)
        self.held[log.append_as_leader(begin, leader_epoch=self.epoch, now_ms=NOW_MS).first_offset] = b"t"

    def roll(self) -> None:
        if self.log.active_segment.size_bytes:
            self.log.roll(NOW_MS)

    def cut(self) -> None:
        end = self.log.log_end_offset
        offset = self.rng.randint(max(self.log.log_start_offset, end - 20), end)
        self.log.truncate_to(offset)
        self.epoch += 1
        self.held = {at: value for at, value in self.held.items() if at < offset}

    def restart(self) -> None:
        self.log.truncate_fully_and_start_at(self.log.log_end_offset + self.rng.randint(0, 3))
        self.epoch += 1
        self.held.clear()

    def delete(self) -> None:
        log = self.log
        log.update_high_watermark(log.log_end_offset)
        log.maybe_increment_log_start_offset(self.rng.randint(log.log_start_offset, log.log_end_offset))
        log.delete_old_segments(NOW_MS)
        self.partition.timers.advance_ms(self.rng.choice((0, 2000)))

    def flush(self) -> None:
        self.log.flusher.flush_in_background()

    def configure(self) -> None:
        self.log.update_config(
            replace(
                self.log.config,
                segment_index_bytes=self.rng.choice(INDEX_BYTES),
                index_interval_bytes=self.rng.choice(INTERVALS),
            )
        )

    def look_up(self) -> None:
        self.log.offset_for_timestamp(NOW_MS + self.rng.randint(-6000, 6000))

    def open_again(self) -> None:
        self.disk.free = None
        if self.rng.random() < 0.5:
            self.partition.reopen()
        else:
            self.partition.crash()


@pytest.mark.parametrize("seed", range(16))
def test_log_of_a_process_with_few_descriptors_keeps_accepted_records(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    for _ in range(70):
        world.step()
    world.log.abandon()
