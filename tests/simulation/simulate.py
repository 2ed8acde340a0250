"""Run seeds of the simulation: `python tests/simulation/simulate.py 17` with its trace, or `0:200` without.

The order of sets of names depends on PYTHONHASHSEED, so it is fixed here: a seed is the same run everywhere.
"""

import argparse
import dataclasses
import json
import logging
import os
import sys
import time
from pathlib import Path

_FIXED = "PYTHONHASHSEED"


def replay_command(seed: int, arguments: argparse.Namespace) -> str:
    words = [".venv/bin/python tests/simulation/simulate.py", str(seed)]
    if arguments.mutant:
        words += ["--mutant", repr(arguments.mutant)]
    words += [f"--{flag.replace('_', '-')}" for flag in ("fast_boot", "rough") if getattr(arguments, flag)]
    return " ".join(words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", help="one seed, or FROM:TO")
    parser.add_argument("--mutant", help="let a machine have this bug")
    parser.add_argument("--stop-at-first", action="store_true")
    parser.add_argument("--fast-boot", action="store_true", help="a broker may be back before anybody missed it")
    parser.add_argument("--rough", action="store_true", help="a worse network, so that rare bugs show sooner")
    parser.add_argument("--json", action="store_true", help="one line for the test that called")
    arguments = parser.parse_args()

    from sim_cluster import Cluster, Settings
    from sim_mutants import MUTANTS
    from sim_world import InvariantBroken, World

    logging.disable(logging.CRITICAL)
    first, colon, last = arguments.seeds.partition(":")
    seeds = range(int(first), int(last) if colon else int(first) + 1)
    mutation = MUTANTS[arguments.mutant][0] if arguments.mutant else None
    report: dict[str, object] = {"failures": [], "seeds": 0, "steps": 0, "acknowledged": 0, "excused": 0}
    failures: list[dict[str, object]] = []
    began_s = time.monotonic()
    for seed in seeds:
        settings = dataclasses.replace(Settings.of(World(seed)), slow_boot=not arguments.fast_boot)
        if arguments.rough:
            settings = dataclasses.replace(settings, lost=0.1, late=0.3)
        cluster = Cluster(seed, settings, mutation)
        try:
            cluster.run()
        except Exception as failure:
            name = failure.name if isinstance(failure, InvariantBroken) else type(failure).__name__
            replay = replay_command(seed, arguments)
            failures.append({"seed": seed, "broken": name, "detail": str(failure), "replay": replay})
            if len(seeds) == 1:
                print(cluster.world.story())
                raise
        else:
            if len(seeds) == 1:
                print(cluster.world.story())
        report["seeds"] = seed - seeds.start + 1
        for key, value in (
            ("steps", cluster.world.steps),
            ("acknowledged", sum(map(len, cluster.oracle.acked.values()))),
            ("excused", len(cluster.oracle.lost)),
        ):
            report[key] += value  # type: ignore[operator]
        if failures and arguments.stop_at_first:
            break
    report["failures"] = failures
    report["seconds"] = round(time.monotonic() - began_s, 1)
    if arguments.json:
        print(json.dumps(report))
    else:
        print({key: value for key, value in report.items() if key != "failures"})
        for failure in failures:
            print(f"seed {failure['seed']}: {failure['detail']}\n    {failure['replay']}")
    return 1 if failures else 0


if __name__ == "__main__":
    if os.environ.get(_FIXED) != "0":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, _FIXED: "0"})
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
