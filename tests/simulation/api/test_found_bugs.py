"""Bugs that applications on aiokafka have, found by seeds: those of docs/ten-bugs.md, and some of aiokafka's public tracker.

`SEEDS=2000 pytest tests/simulation/api/test_found_bugs.py` runs so many seeds of each mended form.
"""

import os
from collections.abc import Sequence
from typing import Any

import pytest

from barnabas.testing import simulation
from tests.simulation.api.aiokafka_issues import ISSUES
from tests.simulation.api.ten_bugs import BUGS

#: Each is found within so many seeds.
FOUND_WITHIN = 100
#: Seeds of each mended form: in `make test` only the one that finds the bug in the broken form.
MENDED_SEEDS = int(os.environ["SEEDS"]) if "SEEDS" in os.environ else None
#: A seed that finds the bug with the Python of `make test`, to save the others. Any of the first hundred may.
FIRST = {
    "bug 1": 1, "bug 2": 1, "bug 3": 0, "bug 5": 3, "bug 6": 0, "bug 7": 2, "bug 8": 0, "bug 9": 9, "bug 10": 0,
    "issue 1101": 1, "issue 197": 0, "issue 933": 3, "issue 1084": 0, "issue 666": 0,
}  # fmt: skip
WORLDS: dict[str, tuple[Any, dict[str, Any]]] = {
    **{f"bug {number}": world for number, world in BUGS.items()},
    **{f"issue {number}": world for number, world in ISSUES.items()},
}


def failed(name: str, seeds: Sequence[int], *, mended: bool) -> list[simulation.Report]:
    function, how = WORLDS[name]
    return [report for report in simulation.hunt(function, seeds, mended=mended, **how) if report.broken]


@pytest.mark.parametrize("name", WORLDS)
def test_bug_is_found(name: str) -> None:
    reports = failed(name, list(dict.fromkeys([FIRST[name], *range(FOUND_WITHIN)])), mended=False)
    assert {report.broken for report in reports} == {"AssertionError"}, [report.message for report in reports]


@pytest.mark.parametrize("name", WORLDS)
def test_mended_form_holds(name: str) -> None:
    seeds = [FIRST[name]] if MENDED_SEEDS is None else range(MENDED_SEEDS)
    assert [report.trace or report.message for report in failed(name, seeds, mended=True)] == []
