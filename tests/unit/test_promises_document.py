"""docs/promises.md names files and tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| (.*) \| `([^`]+)` \| `([^`]+)` \|$", (ROOT / "docs/promises.md").read_text(), flags=re.MULTILINE
)


def test_every_row_of_the_tables_is_read() -> None:
    rows = [line for line in (ROOT / "docs/promises.md").read_text().splitlines() if line.startswith("| ")]
    assert len(rows) - rows.count("| what | file | test |") == len(ROWS) > 30


@pytest.mark.parametrize(("what", "file", "test"), ROWS)
def test_file_and_test_of_a_promise_exist(what: str, file: str, test: str) -> None:
    assert (ROOT / "src/barnabas" / file).is_file(), what
    assert (ROOT / "tests" / test).is_file(), what
