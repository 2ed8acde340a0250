"""The code of docs/simulation-testing.md does what the page says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "simulation-testing.md"
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))


def run(folder: Path, name: str, *options: str) -> str:
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-c", "/dev/null"),
            *("--rootdir", str(folder), "--simulation-jobs=1", *options, str(folder / name)),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    ).stdout


def test_stranger_finds_the_bug(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    said = run(tmp_path, "test_kitchen.py")
    assert "missing = {b'orders-" in said
    assert "The faults it takes" in said
    assert "Run it again: pytest --simulation-seed" in said


def test_mended_kitchen_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "kitchen.py").write_text(FILES["kitchen_mended.py"])
    (tmp_path / "test_kitchen.py").write_text(FILES["test_kitchen.py"])
    assert "1 passed" in run(tmp_path, "test_kitchen.py", "--simulation-seeds=3")


@pytest.mark.parametrize("name", ["test_by_hand.py", "test_balance.py"])
def test_other_tests_of_the_page_pass(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FILES[name])
    assert "1 passed" in run(tmp_path, name, "--simulation-seeds=1")
