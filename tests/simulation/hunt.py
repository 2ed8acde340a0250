"""Find the seed that notices each mutant: `python -m tests.simulation.hunt [--tries 40] [NAME…]` updates mutants.json.

A mutant is tried first on the seeds of the profile that it names, then on all others below 300. A hunt continues where the last
one ended; `--again` starts from the beginning. `--verify` replays the seeds of the table, and hunts again if one no longer
notices its mutant: a change of shipping code may change the random decisions.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.simulation import link_troubles, spark_world, table_world, tier_troubles
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.profiles import name_of

TABLE = Path(__file__).with_name("mutants.json")
SEEDS = 300


def order_of(mutant: Mutant) -> list[int]:
    """Return all seeds, the likely ones first."""
    names = {
        "cluster": name_of,
        "tier": tier_troubles.trouble_of,
        "link": link_troubles.trouble_of,
        "spark": spark_world.kind_of,
        "tables": table_world.kind_of,
    }
    if mutant.world not in names or not mutant.profile:
        return list(range(SEEDS))
    return sorted(range(SEEDS), key=lambda seed: names[mutant.world](seed) != mutant.profile)


def hunt(mutant: Mutant, seeds: list[int], tried: int) -> dict[str, Any]:
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.simulation.simulate", ",".join(map(str, seeds)),
            "--mutant", mutant.name, "--world", mutant.world, "--stop-at-first", "--json",
        ],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    if not done.stdout:
        return {"seed": None, "tried": tried, "broken": "does not run", "detail": done.stderr[-500:]}
    report = json.loads(done.stdout.splitlines()[-1])
    tried += int(report["seeds"])
    if not report["failures"]:
        return {"seed": None, "tried": tried}
    failure = report["failures"][0]
    return {
        "seed": failure["seed"],
        "tried": tried,
        "broken": failure["broken"],
        "detail": failure["detail"].partition("\n")[0][:200],
    }


def is_noticed_by_test(mutant: Mutant) -> bool:
    """Whether the mutant's test fails with the mutant in place."""
    code = (
        "import sys, pytest; from tests.simulation.mutants import MUTANTS; MUTANTS[sys.argv[1]].apply(); "
        # Pytest's own loader, which rewrites assertions, would load the code without the mutant.
        'sys.exit(pytest.main(["--assert=plain", "-q", "--tb=no", "--no-header", "--reruns=0", "-p", "no:cacheprovider", '
        '"tests/" + sys.argv[2]]))'
    )
    done = subprocess.run(
        [sys.executable, "-c", code, mutant.name, mutant.test], capture_output=True, text=True, check=False
    )
    return done.returncode == pytest.ExitCode.TESTS_FAILED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument(
        "--tries", type=int, default=SEEDS, help="seeds for each mutant, those of earlier hunts included"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="forget the table's results for these mutants")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="replay the seeds of the table and report mutants that they no longer notice",
    )
    parser.add_argument(
        "--by-test", action="store_true", help="run the tests that mutants name, with the mutant in place"
    )
    arguments = parser.parse_args()
    if arguments.by_test:
        named = [mutant for mutant in MUTANTS.values() if mutant.test]
        failed = [mutant.name for mutant in named if not is_noticed_by_test(mutant)]
        print(f"{len(named)} mutants name a test; not noticed by it: {failed}")
        return 1 if failed else 0
    table: dict[str, Any] = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    table = {name: row for name, row in table.items() if name in MUTANTS}
    for name in arguments.names if arguments.again else ():
        table.pop(name, None)

    def keep(name: str, row: dict[str, Any]) -> None:
        table[name] = row
        TABLE.write_text(json.dumps({each: table[each] for each in MUTANTS if each in table}, indent=1) + "\n")

    def one(name: str) -> None:
        mutant, row = MUTANTS[name], table.get(name, {"seed": None, "tried": 0})
        if arguments.verify and row["seed"] is not None:
            replayed = hunt(mutant, [row["seed"]], row["tried"] - 1)
            if replayed["seed"] is None:
                print(f"seed {row['seed']} no longer notices: {name}", flush=True)
                replayed["tried"] = 0
            keep(name, row := replayed)
        seeds = order_of(mutant)[row["tried"] : arguments.tries]
        if row["seed"] is not None or not seeds or (mutant.why and name not in arguments.names):
            return
        keep(name, row := hunt(mutant, seeds, row["tried"]))
        print(f"{row['seed']!s:>6} of {row['tried']:>3}  {name}: {row.get('broken')}", flush=True)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, arguments.names or list(MUTANTS)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
