"""Power cuts after which a log once did not hold what was durable, each with many choices of what the disk has lost."""

from barnabas.broker.storage.log_types import Origin
from barnabas.wire.records import BatchBuilder
from tests.simulation.storage_world import PLAIN, StorageWorld


def append(world: StorageWorld, count: int) -> None:
    """That many records, in the leader epoch in which all are."""
    ledger = world.ledgers[PLAIN]
    ledger.epoch = 0
    for _ in range(count):
        builder = BatchBuilder()
        builder.append(b"key", world.rng.randbytes(900), timestamp=world.clock.now_ms())
        world.append_data(PLAIN, world.log(PLAIN), ledger, bytes(builder.build()), Origin.CLIENT)


def flush(world: StorageWorld) -> None:
    world.log(PLAIN).flusher.flush_in_background()
    world.threads.run_pending()
    world.manager.checkpoint("recovery-point-offset-checkpoint")
    world.threads.run_pending()


def test_segment_that_was_cut_off_does_not_come_back_among_later_records() -> None:
    """Of another leader epoch a file is written with the next flush, and the directory synced with it. Of the same one nothing
    was: as for a copy of a log that had too much, or a leader that has lost its end."""
    for seed in range(60):
        world = StorageWorld(seed)
        for _ in range(3):
            append(world, 2)
            world.log(PLAIN).roll(world.clock.now_ms())
        flush(world)
        world.cut(PLAIN, 1)
        append(world, 8)
        flush(world)
        assert world.log(PLAIN).recovery_point == 9
        world.restart("power")
        assert world.log(PLAIN).log_end_offset == 9  # the rest is checked at each restart
