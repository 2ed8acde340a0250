"""Test an asyncio application against real brokers on a virtual clock, with faults by seed.

    from barnabas.testing import simulation

    @simulation.test(seeds=200, brokers=3, faults="all", virtual_minutes=10)
    async def test_no_order_is_lost(world):
        orders = await world.topic("orders", partitions=6)
        for number in range(3):
            world.process(f"worker-{number}", run_worker, world.bootstrap)
        await world.load(orders, rate=50)
        await world.calm()
        ...

A seed that fails, fails again: everything that happens follows from it. `docs/simulation-testing.md` has it all.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.testing.simulation import checks as check
    from barnabas.testing.simulation.app_world import World
    from barnabas.testing.simulation.guests import Guest, Refused
    from barnabas.testing.simulation.running import Report
    from barnabas.testing.simulation.seeds import SimulationFailed, hunt, run, settings, shrink, test
    from barnabas.testing.simulation.services import AnswerLost, Conflict, Database, Duplicate

__all__ = [
    "AnswerLost",
    "Conflict",
    "Database",
    "Duplicate",
    "Guest",
    "Refused",
    "Report",
    "SimulationFailed",
    "World",
    "check",
    "hunt",
    "run",
    "settings",
    "shrink",
    "test",
]

#: Loaded on first use: the simulator's parts are imported without what applications need, and pytest loads none of it.
_HOMES = {
    "AnswerLost": "services",
    "Conflict": "services",
    "Database": "services",
    "Duplicate": "services",
    "Guest": "guests",
    "Refused": "guests",
    "Report": "running",
    "SimulationFailed": "seeds",
    "World": "app_world",
    "hunt": "seeds",
    "run": "seeds",
    "settings": "seeds",
    "shrink": "seeds",
    "test": "seeds",
}


def __getattr__(name: str) -> object:
    if name == "check":
        return import_module(f"{__name__}.checks")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
