"""The tables of docs/connect.md are those of the code."""

import subprocess
import sys
from pathlib import Path


def test_tables_of_the_page_are_current() -> None:
    script = Path(__file__).parents[4] / "scripts" / "generate_connect_doc.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
