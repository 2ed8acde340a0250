"""`python -m tests.fuzz --seconds 3600 --seed 7`: exits with 1 and what was found."""

import argparse
import sys

from tests.fuzz.attack import attack


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=None, help="How long; without it, --count decides.")
    parser.add_argument("--count", type=int, default=20_000, help="How many inputs.")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    report = attack(seed=options.seed, count=None if options.seconds else options.count, seconds=options.seconds)
    print(report)
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
