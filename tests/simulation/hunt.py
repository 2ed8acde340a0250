"""Which seed notices which mutant: `python -m tests.simulation.hunt [--seeds 300] [NAME…]` keeps the table in mutants.json."""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.simulation.mutants import MUTANTS

TABLE = Path(__file__).with_name("mutants.json")


def hunt(name: str, seeds: int, first: int) -> dict[str, Any]:
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.simulation.simulate", f"{first}:{first + seeds}",
            "--mutant", name, "--stop-at-first", "--json",
        ],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    if not done.stdout:
        return {"seed": None, "broken": "does not run", "detail": done.stderr[-500:]}
    report = json.loads(done.stdout.splitlines()[-1])
    if not report["failures"]:
        return {"seed": None, "broken": None, "seeds": int(report["seeds"])}
    failure = report["failures"][0]
    return {"seed": failure["seed"], "broken": failure["broken"], "detail": failure["detail"][:200]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--missing", action="store_true", help="only those that the table has no seed for")
    arguments = parser.parse_args()
    table: dict[str, Any] = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    table = {name: row for name, row in table.items() if name in MUTANTS}
    names = arguments.names or list(MUTANTS)
    if arguments.missing:
        names = [name for name in names if table.get(name, {}).get("seed") is None]

    def one(name: str) -> None:
        table[name] = row = hunt(name, arguments.seeds, arguments.first)
        print(f"{row['seed']!s:>6}  {name}: {row['broken']}", flush=True)
        TABLE.write_text(json.dumps({each: table[each] for each in MUTANTS if each in table}, indent=1) + "\n")

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
