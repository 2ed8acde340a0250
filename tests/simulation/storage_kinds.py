"""Which trouble the logs of a seed have: of forty seeds, nine have any, and the others one kind, often."""

from collections.abc import Callable
from typing import NamedTuple

from tests.simulation.storage_damage import DamagedWorld, KilledWorld, RepairedWorld, RottenWorld, SwappedWorld
from tests.simulation.storage_few_descriptors import ScarceWorld
from tests.simulation.storage_follow import CutBackWorld, GarbledWorld, ManySegmentsWorld
from tests.simulation.storage_loop_turns import ReadingWorld, TransactionsWorld
from tests.simulation.storage_moves import MovingWorld
from tests.simulation.storage_settings import ChangingWorld
from tests.simulation.storage_timed_faults import (
    AbortedKeysWorld,
    AbortedWorld,
    FailingWorld,
    FlushingWorld,
    HastyWorld,
    RemadeWorld,
    RewrittenWorld,
    UnendedWorld,
    UnlinkedWorld,
)
from tests.simulation.storage_without_descriptors import PoorCleanerWorld, PoorFollowerWorld, PoorWorld
from tests.simulation.storage_world import StorageWorld


class Kind(NamedTuple):
    world: type[StorageWorld]
    run: Callable[..., None]
    #: How often: rounds, or steps.
    times: int
    #: Whether the file system keeps the order of names (`SimDisk`).
    is_journaled: bool


def kind_of(seed: int) -> Kind:
    is_even = seed % 2 == 0
    if (later := _later(seed % 40, is_journaled=seed // 40 % 2 == 0)) is not None:
        return later
    if seed % 20 in (7, 16):
        return Kind(MovingWorld, MovingWorld.run_moves, 25, is_even)
    if seed % 10 == 9:
        return Kind(StorageWorld, StorageWorld.run_compactions, 25, is_even)
    if seed % 10 == 4:
        return Kind(StorageWorld, StorageWorld.run_cuts, 25, is_even)
    if seed % 20 in (2, 13):
        return Kind(StorageWorld, StorageWorld.run_losses, 25, is_even)
    return Kind(StorageWorld, StorageWorld.run, 150, is_even)


def _later(rest: int, *, is_journaled: bool) -> Kind | None:
    """Kinds that came later have seeds that had found no mutant."""
    kinds = {
        8: Kind(DamagedWorld, DamagedWorld.run_damages, 20, is_journaled),
        28: Kind(RepairedWorld, RepairedWorld.run_repairs, 10, is_journaled),
        10: Kind(ChangingWorld, ChangingWorld.run_changes, 15, is_journaled),
        30: Kind(SwappedWorld, SwappedWorld.run_swaps, 10, is_journaled),
        12: Kind(ScarceWorld, ScarceWorld.run_short_of_descriptors, 160, is_journaled),
        32: Kind(KilledWorld, KilledWorld.run_kills, 15, False),
        18: Kind(TransactionsWorld, TransactionsWorld.run_transactions, 40, is_journaled),
        38: Kind(ReadingWorld, ReadingWorld.run_reads, 3, is_journaled),
        11: Kind(HastyWorld, HastyWorld.run_hasty_moves, 15, is_journaled),
        17: Kind(RemadeWorld, RemadeWorld.run_deletions, 10, is_journaled),
        20: Kind(RewrittenWorld, RewrittenWorld.run_rewrites, 20, False),
        21: Kind(FlushingWorld, FlushingWorld.run_flushes, 20, is_journaled),
        25: Kind(AbortedWorld, AbortedWorld.run_aborts, 25, False),
        39: Kind(AbortedKeysWorld, AbortedKeysWorld.run_aborted_keys, 10, is_journaled),
        35: Kind(UnlinkedWorld, UnlinkedWorld.run_unlinks, 80, False),
        33: Kind(PoorWorld, PoorWorld.run_poor, 40, is_journaled),
        22: Kind(PoorCleanerWorld, PoorCleanerWorld.run_poor_compactions, 10, is_journaled),
        14: Kind(FailingWorld, FailingWorld.run_failures, 15, is_journaled),
        4: Kind(CutBackWorld, CutBackWorld.run_cuts_back, 25, False),
        27: Kind(ManySegmentsWorld, ManySegmentsWorld.run_deep_cuts, 10, is_journaled),
        34: Kind(GarbledWorld, GarbledWorld.run_garbled, 30, is_journaled),
        16: Kind(RottenWorld, RottenWorld.run_rot, 15, is_journaled),
        36: Kind(PoorFollowerWorld, PoorFollowerWorld.run_poor_restarts, 30, is_journaled),
        31: Kind(UnendedWorld, UnendedWorld.run_short_ends, 40, is_journaled),
    }
    return kinds.get(rest)
