"""Mutants: small defects that are put into shipping code one at a time. The simulation must notice every one."""

from tests.simulation.mutants import (
    controller,
    groups,
    links,
    registry,
    replication,
    server,
    services,
    share,
    sinks,
    storage,
    storage_faults,
    tables,
    tier,
    transactions,
    zookeeper,
)
from tests.simulation.mutants.mutant import Mutant

__all__ = ["MUTANTS", "Mutant"]

_ALL = [
    *replication.MUTANTS,
    *controller.MUTANTS,
    *storage.MUTANTS,
    *storage_faults.MUTANTS,
    *transactions.MUTANTS,
    *groups.MUTANTS,
    *zookeeper.MUTANTS,
    *links.MUTANTS,
    *tier.MUTANTS,
    *server.MUTANTS,
    *sinks.MUTANTS,
    *registry.MUTANTS,
    *tables.MUTANTS,
    *services.MUTANTS,
    *share.MUTANTS,
]

MUTANTS = {mutant.name: mutant for mutant in _ALL}
assert len(MUTANTS) == len(_ALL), "two mutants have one name"
