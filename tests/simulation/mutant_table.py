"""The table of mutants in the docs: `python -m tests.simulation.mutant_table` writes docs/mutants.md from mutants.json."""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.simulation.mutants import MUTANTS
from tests.simulation.profiles import name_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "mutants.md"
TABLE = Path(__file__).with_name("mutants.json")


_WORLDS: Final = {"storage": "logs alone", "link": "linked clusters", "tier": "tiered storage"}


class NotSimulated(NamedTuple):
    """A mended finding that no simulated world can show."""

    finding: str
    what: str
    why: str
    #: A file below `tests`, and a test in it.
    file: str
    test: str


NOT_SIMULATED: Final = (
    NotSimulated(
        "T10",
        "the blocking client never signs in again after acks=0",
        "the load is asynchronous, and signs in nowhere",
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
    """What the hunt has found out, by mutant."""
    table: dict[str, Any] = json.loads(TABLE.read_text())
    return {name: table.get(name, {"seed": None, "tried": 0}) for name in MUTANTS}


def render() -> str:
    found = rows()
    noticed = {name: row for name, row in found.items() if row["seed"] is not None}
    return "\n".join(
        [
            "# Mutants: does the simulation find defects?",
            "",
            f"A mutant is a small defect that is put into shipping code. There are {len(MUTANTS)}",
            f"(`tests/simulation/mutants/`), and the simulation finds {len(noticed)} of them within 300 seeds.",
            "A change of barnabas or of the simulation may change which seed finds a mutant:",
            "`python -m tests.simulation.hunt --verify` replays all, and searches again where one is no longer found.",
            "Results are in `tests/simulation/mutants.json`, and `python -m tests.simulation.mutant_table` writes this page",
            "from them. To see one:",
            "",
            '    python -m tests.simulation.simulate SEED --mutant "NAME" [--world storage|link|tier]',
            "",
            "*Put back* names a real defect that was found and fixed before. *World* is the profile of the cluster,",
            "*a mix*, *logs alone* (`storage_world.py`), *linked clusters* (`link_world.py`), *tiered* (`tier_world.py`).",
            "*Seed* found it, *after* this many seeds. The search begins with the profile that the mutant names.",
            "",
            "| what is wrong | put back | world | seed | after | what the oracle said |",
            "|---|---|---|---|---|---|",
            *(_line(name, row) for name, row in noticed.items()),
            *_unnoticed({name: row for name, row in found.items() if row["seed"] is None and not MUTANTS[name].why}),
            "",
            "## Findings that no simulated world shows",
            "| finding | what is wrong | why | the test that notices it |",
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
        "## Not noticed yet",
        "Each breaks a promise, but only where several faults meet within moments. The hunt goes on. A test notices each:",
        "`python -m tests.simulation.hunt --by-test` runs those, with the mutant in place.",
        "",
        "| what is wrong | put back | seeds tried | the test that notices it |",
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
