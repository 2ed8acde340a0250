"""The table of mutants in the docs: `python -m tests.simulation.mutant_table` writes docs/mutants.md from mutants.json."""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.simulation.mutants import MUTANTS
from tests.simulation.profiles import name_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "mutants.md"
TABLE = Path(__file__).with_name("mutants.json")


_WORLDS: Final = {
    "storage": "logs alone",
    "link": "linked clusters",
    "tier": "tiered storage",
    "spark": "queries of Spark",
    "registry": "a registry",
    "share": "share groups",
    "tables": "tables alone",
}


class NotSimulated(NamedTuple):
    """A fixed finding that no simulated world can show."""

    finding: str
    what: str
    why: str
    #: A file below `tests` that has the test.
    file: str
    test: str


NOT_SIMULATED: Final = (
    NotSimulated(
        "T10",
        "the blocking client does not log in again after acks=0",
        "the simulated clients are asynchronous, and do not log in",
        "unit/client/test_client_blocking.py",
        "test_session_is_renewed_also_after_requests_that_get_no_answer",
    ),
    NotSimulated(
        "T11",
        "the tools cannot grant TWO_PHASE_COMMIT",
        "a command line tool",
        "unit/cli/test_cli_acls.py",
        "test_two_phase_commit_can_be_granted",
    ),
)


def rows() -> dict[str, Any]:
    """Return the results of the hunts, by mutant."""
    table: dict[str, Any] = json.loads(TABLE.read_text())
    return {name: table.get(name, {"seed": None, "tried": 0}) for name in MUTANTS}


def render() -> str:
    found = rows()
    noticed = {name: row for name, row in found.items() if row["seed"] is not None}
    return "\n".join(
        [
            "# Mutants: does the simulation find defects?",
            "",
            f"A mutant is a small defect that is put into shipping code. There are {len(MUTANTS)} mutants",
            f"(`tests/simulation/mutants/`). The simulation finds {len(noticed)} of them within 300 seeds.",
            "A change of barnabas or of the simulation may change which seed finds a mutant:",
            "`python -m tests.simulation.hunt --verify` replays all recorded seeds, and searches again if a seed no",
            "longer finds its mutant.",
            "`tests/simulation/mutants.json` has the results, and `python -m tests.simulation.mutant_table` writes this page",
            "from them. This command runs one mutant:",
            "",
            '    python -m tests.simulation.simulate SEED --mutant "NAME" [--world WORLD]',
            "",
            "The other worlds are storage, link, tier, spark, registry, share and tables.",
            "",
            "*Defect* names a real defect that was found and fixed before, and that the mutant puts back. *World* is the",
            "profile of the cluster, *a mix*, *logs alone* (`storage_world.py`), *linked clusters* (`link_world.py`),",
            "*tiered storage* (`tier_world.py`), *queries of Spark* (`spark_world.py`), *share groups* (`share_world.py`),",
            "*a registry* (`registry_world.py`) or *tables alone* (`table_world.py`). *Seed* is the seed that found it, and",
            "*tried* is the number of seeds that were tried. The search begins with the profile that the mutant names.",
            "",
            "| mutant | defect | world | seed | tried | broken promise |",
            "|---|---|---|---|---|---|",
            *(_line(name, row) for name, row in noticed.items()),
            *_unnoticed({name: row for name, row in found.items() if row["seed"] is None and not MUTANTS[name].why}),
            "",
            "## Defects that no simulated world can show",
            "Each has a test that fails with the defect in place.",
            "",
            "| defect | mutant | reason | test that finds it |",
            "|---|---|---|---|",
            *(
                f"| {each.finding} | {each.what} | {each.why} | `tests/{each.file}::{each.test}` |"
                for each in NOT_SIMULATED
            ),
            *(
                f"| {mutant.finding} | {mutant.name} | {mutant.why} | `tests/{mutant.test}` |"
                for mutant in MUTANTS.values()
                if mutant.why and mutant.name not in noticed
            ),
            "",
        ]
    )


def _line(name: str, row: dict[str, Any]) -> str:
    mutant, seed = MUTANTS[name], row["seed"]
    world = _WORLDS.get(mutant.world) or name_of(seed) or "a mix"
    return f"| {name} | {mutant.finding} | {world} | {seed} | {row['tried']} | {row['broken']} |"


def _unnoticed(left: dict[str, Any]) -> list[str]:
    if not left:
        return []
    return [
        "",
        "## Not found yet",
        "Each breaks a promise, but only if several faults coincide within moments. A test finds each:",
        "`python -m tests.simulation.hunt --by-test` runs those, with the mutant in place.",
        "",
        "| mutant | defect | seeds tried | test that finds it |",
        "|---|---|---|---|",
        *(
            f"| {name} | {MUTANTS[name].finding} | {row['tried']} | `tests/{MUTANTS[name].test}` |"
            for name, row in left.items()
        ),
    ]


def main() -> None:
    PAGE.write_text(render())


if __name__ == "__main__":
    main()
