"""The code of docs/simulation-testing.md does what the page says."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "simulation-testing.md"
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))


def test_code_of_the_page_does_what_the_page_says(tmp_path: Path) -> None:
    """One run of pytest for all of it: each would import the brokers again."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text.replace("seeds=3", "seeds=1"))
    mended = FILES["test_kitchen.py"].replace("from kitchen import", "from kitchen_mended import")
    (tmp_path / "test_mended.py").write_text(mended.replace("seeds=100", "seeds=2"))
    said = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "no:randomly"),
            *("-c", "/dev/null", "--rootdir", str(tmp_path), "--simulation-jobs=1", str(tmp_path)),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    ).stdout
    assert "missing = {b'orders-" in said
    assert "The faults it takes" in said
    assert "Run it again: pytest --simulation-seed" in said
    assert "FAILED test_kitchen.py::test_every_order_is_cooked" in said
    for passed in (
        "test_mended.py::test_every_order_is_cooked",
        "test_by_hand.py::test_cluster_goes_on_when_a_leader_dies",
        "test_balance.py::test_two_customers_of_one_account",
    ):
        assert f"PASSED {passed}" in said
