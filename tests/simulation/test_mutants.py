"""The simulation finds bugs: small wrongs in what ships, and the seed that notices each (`mutants.json`, made by `hunt`)."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.test_simulation import describe, simulate

TABLE: dict[str, Any] = json.loads(Path(__file__).with_name("mutants.json").read_text())
#: All of them take long: `make simulate` hunts for every one. These are noticed at once.
QUICK = 3
FOUND = sorted((row["seed"], name) for name, row in TABLE.items() if row["seed"] is not None and name in MUTANTS)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_up_to_date(name: str) -> None:
    """Its piece stands in the source, once, and what takes its place is Python."""
    for file, source in MUTANTS[name].find().items():
        compile(source, str(file), "exec")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for _, name in FOUND[:QUICK]])
def test_mutant_is_noticed(name: str) -> None:
    # A few seeds from the one that noticed it: another change may have moved what chance decides.
    first = TABLE[name]["seed"]
    world = MUTANTS[name].world
    report = simulate(f"{first}:{first + 10}", "--mutant", name, "--world", world, "--stop-at-first")
    assert report["failures"], f"no seed from {first} on noticed that {name}"
    assert report["failures"][0]["broken"], describe(report)
