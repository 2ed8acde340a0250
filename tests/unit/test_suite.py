"""Rules of the suite itself."""

import ast
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from barnabas.base.host.disk import Disk
from tests.simulation.control_invariants import CANNOT_COUNT_LINE, NO_MARKER_LINE
from tests.simulation.faults import COMPACTION_LINE, HALF_DONE_LINES
from tests.support.open_files import closed_at_the_end

ROOT = Path(__file__).parents[2]
LOG_METHODS = ("debug", "info", "warning", "error")
#: A test that fails when it runs for the first time, and then passes.
FAILS_ONCE = """
from pathlib import Path

def test_fails_once():
    marker = Path(__file__).with_suffix(".ran")
    first = not marker.exists()
    marker.touch()
    assert not first, "the first time"
"""


def test_every_folder_of_tests_is_a_package() -> None:
    """pytest imports a module outside of a package by its bare name: two of one name could not be collected together."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(("folder", "tries"), [("scenarios", 2), ("unit", 1), ("simulation", 1)])
def test_only_tests_with_real_processes_are_tried_again_and_the_run_says_why(
    tmp_path: Path, folder: str, tries: int
) -> None:
    shutil.copy(ROOT / "conftest.py", tmp_path)
    shutil.copytree(ROOT / "tests/support", tmp_path / "tests/support")
    module = tmp_path / f"tests/{folder}/test_once.py"
    module.parent.mkdir()
    module.write_text(FAILS_ONCE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "--rootdir", ".", f"tests/{folder}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is (tries == 2), done.stdout
    reason = rf"tests/{folder}/test_once.py::test_fails_once: AssertionError: the first time"
    assert len(re.findall(reason, done.stdout)) == tries - 1, done.stdout


def test_files_that_a_test_leaves_open_are_closed_behind_it(tmp_path: Path) -> None:
    with closed_at_the_end():
        left_open, closed = (Disk().open(str(tmp_path / name), create=True) for name in ("one", "two"))
        Disk().close(closed)
        other = os.open(tmp_path, os.O_RDONLY)
    assert other == closed
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(left_open)
    os.close(other)


def test_modules_that_start_brokers_are_those_that_are_tried_again() -> None:
    import conftest

    starts = re.compile(r"^\s*with (Local)?Cluster\(", re.MULTILINE)
    modules = (ROOT / "tests/unit").rglob("test_*.py")
    with_brokers = {str(path.relative_to(ROOT)) for path in modules if starts.search(path.read_text())}
    assert with_brokers == {path for path in conftest.REAL_PROCESSES if path.startswith("tests/unit/")}


@cache
def broker_log_lines() -> list[str]:
    return [
        call.args[0].value
        for path in (ROOT / "src/barnabas/broker").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LOG_METHODS
        if call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    ]


@pytest.mark.parametrize("text", [*HALF_DONE_LINES, COMPACTION_LINE, CANNOT_COUNT_LINE, NO_MARKER_LINE])
def test_each_line_that_the_simulation_listens_for_is_logged_by_a_broker(text: str) -> None:
    """A fault that waits for a line that is worded otherwise never happens, and no other test fails."""
    assert any(text in line for line in broker_log_lines())
