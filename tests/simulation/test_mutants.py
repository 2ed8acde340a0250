"""The simulation finds bugs: mutants of shipping code, and the seed that notices each (`mutants.json`, made by `hunt`)."""

import pytest

from tests.simulation.mutant_table import NOT_SIMULATED, PAGE, ROOT, NotSimulated, render, rows
from tests.simulation.mutants import MUTANTS
from tests.simulation.test_simulation import describe, simulate

#: `make simulate` runs all mutants, which takes long. These are noticed quickly; one of them in the world of logs alone, and
#: one in that of linked clusters.
QUICK = (
    "acks=all is answered before the followers have the record",
    "a leader counts a shrunk ISR before the controller agrees",
    "a flush leaves out the indexes",
    "a mirror takes records of clients",
)
TABLE = rows()


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_up_to_date(name: str) -> None:
    """The mutant's original text occurs once in the source, and its replacement is valid Python."""
    for file, source in MUTANTS[name].find().items():
        compile(source, str(file), "exec")


def test_table_in_the_docs_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), "run python -m tests.simulation.mutant_table"


@pytest.mark.parametrize("row", NOT_SIMULATED, ids=lambda row: row.finding)
def test_defect_that_no_world_shows_has_a_test(row: NotSimulated) -> None:
    assert f"def {row.test}(" in (ROOT / "tests" / row.file).read_text()


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row["seed"] is None])
def test_mutant_that_no_seed_notices_has_a_test(name: str) -> None:
    file, _, test = MUTANTS[name].test.partition("::")
    assert test and f"def {test}(" in (ROOT / "tests" / file).read_text()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", QUICK)
def test_mutant_is_noticed(name: str) -> None:
    # Run a few seeds after the one that noticed it: another change may have changed the random decisions.
    first = TABLE[name]["seed"]
    world = MUTANTS[name].world
    report = simulate(f"{first}:{first + 10}", "--mutant", name, "--world", world, "--stop-at-first")
    assert report["failures"], f"no seed from {first} on noticed that {name}"
    assert report["failures"][0]["broken"], describe(report)
