"""Power cuts, kills and clean stops of real logs on a simulated disk: durable records stay, and the rest is consistent."""

import struct
from collections.abc import Callable, Iterator

import pytest

from barnabas.broker.storage.log_types import Origin
from barnabas.wire.records import BatchBuilder, end_txn_marker
from tests.simulation.storage_world import COMPACTED, PLAIN, Crash, StorageWorld

SEEDS = range(80)


@pytest.mark.parametrize("seed", range(24))
def test_logs_keep_their_promises_through_crashes_anywhere(seed: int) -> None:
    world = StorageWorld(seed, journaled=seed % 2 == 0)
    try:
        world.run(150)
    except BaseException as failure:
        failure.add_note("\n".join(world.story[-40:]))
        raise


def after_power_cuts(prepare: Callable[[StorageWorld], None], *, journaled: bool = False) -> Iterator[StorageWorld]:
    """Yield worlds that were prepared alike and lost different things."""
    for seed in SEEDS:
        world = StorageWorld(seed, journaled=journaled)
        prepare(world)
        world.restart("power")
        yield world


def append(world: StorageWorld, *values: bytes, epoch: int = 0) -> None:
    for value in values:
        builder = BatchBuilder()
        builder.append(b"key", value, timestamp=world.clock.now_ms())
        _append(world, bytes(builder.build()), epoch)


def _append(world: StorageWorld, data: bytes, epoch: int, origin: Origin = Origin.CLIENT) -> None:
    ledger = world.ledgers[PLAIN]
    ledger.epoch = epoch
    world.append_data(PLAIN, world.log(PLAIN), ledger, data, origin)


def abort(world: StorageWorld, producer_id: int) -> None:
    builder = BatchBuilder(producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)
    builder.append(b"key", b"aborted", timestamp=world.clock.now_ms())
    _append(world, bytes(builder.build()), 0)
    marker = end_txn_marker(
        commit=False, coordinator_epoch=0, producer_id=producer_id, producer_epoch=0, timestamp=world.clock.now_ms()
    )
    _append(world, bytes(marker), 0, Origin.COORDINATOR)


def test_a_power_cut_does_not_bring_the_clean_shutdown_marker_back() -> None:
    def prepare(world: StorageWorld) -> None:
        append(world, b"one")
        world.restart("clean")
        append(world, b"two")

    for world in after_power_cuts(prepare):
        assert not world.manager.dirs[0].had_clean_shutdown


def test_epochs_are_those_of_the_records_where_a_truncation_was_lost() -> None:
    def prepare(world: StorageWorld) -> None:
        append(world, b"one", b"two", b"three")
        world.log(PLAIN).flusher.flush()
        world.cut(PLAIN, 2)
        append(world, b"drei", epoch=3)
        world.log(PLAIN).write_epochs()

    for world in after_power_cuts(prepare):
        assert world.log(PLAIN).log_end_offset >= 2  # the rest is checked at each restart


def test_a_new_log_that_lost_a_segment_ends_before_it() -> None:
    def prepare(world: StorageWorld) -> None:
        log = world.log(PLAIN)
        for value in (b"one", b"two", b"three"):
            append(world, value)
            log.roll(world.clock.now_ms())

    ends = {int(world.log(PLAIN).log_end_offset) for world in after_power_cuts(prepare, journaled=True)}
    assert {0, 3} < ends


def test_an_aborted_transaction_survives_a_second_power_cut_after_the_first_recovery() -> None:
    def prepare(world: StorageWorld) -> None:
        abort(world, 7)
        world.log(PLAIN).flusher.flush()
        world.manager.checkpoint("recovery-point-offset-checkpoint")
        world.threads.run_pending()
        world.restart("power")
        world.log(PLAIN).roll(world.clock.now_ms())

    for world in after_power_cuts(prepare):
        assert [txn.producer_id for txn in world.log(PLAIN).aborted_transactions(0, 2)] == [7]


def test_replacements_of_durable_records_are_not_trusted_before_they_are_durable() -> None:
    def prepare(world: StorageWorld) -> None:
        log = world.log(PLAIN)
        for value in (b"one", b"two", b"three"):
            append(world, value * 300, value * 300)
            log.roll(world.clock.now_ms())
        world.threads.run_pending()
        log.flusher.flush()
        world.manager.checkpoint("recovery-point-offset-checkpoint")
        world.threads.run_pending()
        world.cut(PLAIN, 1)
        append(world, *(b"drei" * 300 for _ in range(4)), epoch=3)
        log.roll(world.clock.now_ms())
        append(world, b"vier", epoch=3)

    for world in after_power_cuts(prepare, journaled=True):
        assert world.log(PLAIN).log_end_offset >= 1  # the rest is checked at each restart


def test_deleted_records_that_a_power_cut_brings_back_keep_their_aborted_transactions() -> None:
    """The log start is checkpointed only now and then; until then, an aborted transaction below it must stay aborted."""

    def prepare(world: StorageWorld) -> None:
        abort(world, 7)
        world.log(PLAIN).roll(world.clock.now_ms())
        append(world, b"kept")
        world.restart("kill")  # the index of aborted transactions is rebuilt, and not synced
        log = world.log(PLAIN)
        log.update_high_watermark(3)
        log.maybe_increment_log_start_offset(2)
        log.flusher.flush()
        world.manager.checkpoint("recovery-point-offset-checkpoint")
        world.threads.run_pending()

    came_back = [
        [txn.producer_id for txn in world.log(PLAIN).aborted_transactions(0, 2)]
        for world in after_power_cuts(prepare, journaled=True)
        if world.log(PLAIN).log_start_offset == 0
    ]
    assert came_back and all(found == [7] for found in came_back)


def test_segment_that_recovery_deleted_does_not_come_back_among_later_records() -> None:
    """Its name was deleted, but not synced: a flush that counts later records as durable must sync the directory."""

    def prepare(world: StorageWorld) -> None:
        append(world, b"durable")
        world.log(PLAIN).roll(world.clock.now_ms())
        append(world, b"durable")
        world.threads.run_pending()
        world.log(PLAIN).flusher.flush()
        world.manager.checkpoint("recovery-point-offset-checkpoint")
        world.threads.run_pending()
        for value in (b"one", b"two", b"three"):
            append(world, *(value * 300 for _ in range(2)))
            world.log(PLAIN).roll(world.clock.now_ms())
        world.restart("power")
        append(world, *(b"anew" * 300 for _ in range(8)))
        world.log(PLAIN).flusher.flush_in_background()
        world.threads.run_pending()

    for world in after_power_cuts(prepare):
        assert world.log(PLAIN).log_end_offset >= 10  # the rest is checked at each restart


def test_indexes_that_were_built_again_survive_the_next_power_cut() -> None:
    """A power cut has left the log file of one segment with the indexes of its replacement. Storage seed 59."""

    def prepare(world: StorageWorld) -> None:
        append(world, *(b"value" * 100 for _ in range(12)))
        abort(world, 7)
        world.log(PLAIN).roll(world.clock.now_ms())
        append(world, b"last")
        world.threads.run_pending()
        world.log(PLAIN).flusher.flush()
        world.manager.checkpoint("recovery-point-offset-checkpoint")
        world.threads.run_pending()
        segment = f"{world.log(PLAIN).directory}/{0:020d}"
        world.log(PLAIN).update_high_watermark(15)
        world.disk.process_died(world.life)
        life = world.disk.life()
        entries = struct.iter_unpack(">II", life.read_file(f"{segment}.index"))
        wrong = b"".join(struct.pack(">II", offset, position - 7) for offset, position in entries)
        assert wrong
        life.replace_file(f"{segment}.index", wrong)
        life.unlink(f"{segment}.txnindex")
        life.replace_file(f"{segment}.log.cleaned", b"")
        life.fsync_dir(world.log(PLAIN).directory)
        world.disk.process_died(life)
        world.start()

    for world in after_power_cuts(prepare):
        assert [txn.producer_id for txn in world.log(PLAIN).aborted_transactions(0, 14)] == [7]


def test_a_compaction_that_loses_its_power_anywhere_keeps_the_last_value_of_each_key_once() -> None:
    """The disk keeps any of the renames that replace segments by compacted ones. Seeds 309, 333 and 1323."""

    def compacted(steps: int, seed: int) -> bool:
        """Compact, and crash before the `steps`th operation; return whether the compaction was complete before that."""
        world = StorageWorld(seed)
        log, ledger = world.log(COMPACTED), world.ledgers[COMPACTED]
        for value in range(6):
            for key in (b"a", b"b", b"c%d" % value):
                builder = BatchBuilder()
                builder.append(key, b"%d" % value * 40, timestamp=world.clock.now_ms())
                world.append_data(COMPACTED, log, ledger, bytes(builder.build()), Origin.CLIENT)
            log.roll(world.clock.now_ms())
        log.flusher.flush()
        world.threads.run_pending()
        log.update_high_watermark(log.log_end_offset)
        world.manager.checkpoint("recovery-point-offset-checkpoint")
        world.threads.run_pending()
        world.crashes_in = steps
        try:
            for _ in range(20):
                world.clock_runs(500)
                world.threads.run_pending()
        except Crash:
            if seed >= 1000:
                world.restart("kill")  # recovery completes it, and the recovery's renames may be lost too
            world.restart("power")
            return False
        assert len(log.segments) < 7
        return True

    for seed in range(2):
        assert any(compacted(steps, seed * 1000 + steps) for steps in range(1, 1000, 2))
