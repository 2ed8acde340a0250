"""The contract on pure modules finds what it should: by name, by claim, and through others."""

from pathlib import Path

import grimp
import pytest
from scripts.import_contracts import PureModules, claims_purity, pure_modules


@pytest.mark.parametrize(
    ("name", "docstring", "is_bound"),
    [
        ("p.machine", "", True),
        ("p.isr_machine", "Decides.", True),
        ("p.rules", "Legal. Pure.", True),
        ("p.rules", "Pure: time comes in.", True),
        ("p.rules", "What is\nlegal. Pure\ndecisions.", True),
        ("p.rules", "A pure machine.", True),
        ("p.rules", "Owner: the loop. Pure but for the store.", False),
        ("p.driver", "Carries out what the pure machines decide.", False),
    ],
)
def test_module_is_bound_by_its_name_or_its_claim(name: str, docstring: str, is_bound: bool) -> None:
    assert claims_purity(name, docstring) is is_bound


@pytest.mark.parametrize(
    ("machine", "kept"),
    [
        ("import json\n", True),
        ("import time\n", False),
        ("def now():\n    from time import time\n    return time()\n", False),
        ("from impure_example import helper\n", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from impure_example import helper\n", True),
    ],
)
def test_import_of_a_clock_is_found_also_through_another_module(
    machine: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "impure_example"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("import time\n")
    (package / "machine.py").write_text(machine)
    monkeypatch.syspath_prepend(tmp_path)
    contract = PureModules("Machines are pure", {"root_packages": ["impure_example"]}, {"forbidden_modules": ["time"]})
    graph = grimp.build_graph("impure_example", include_external_packages=True, cache_dir=None)
    assert contract.check(graph, verbose=False).kept is kept


def test_all_of_the_machines_are_bound() -> None:
    bound = pure_modules("barnabas")
    for module in (
        "controller.machine",
        "replication.fetcher_machine",
        "controller.placement",
        "storage.producer_state",
    ):
        assert f"barnabas.broker.{module}" in bound
