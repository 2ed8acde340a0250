"""`python -m tests.fuzz --seconds 3600 --seed 7`: prints its findings and then exits with 1."""

import argparse
import contextlib
import sys

from tests.fuzz.attack import attack_target
from tests.fuzz.target import apache, given, ours


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=None, help="How long; without it, --count decides.")
    parser.add_argument("--count", type=int, default=20_000, help="How many inputs.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--apache", action="store_true", help="Attack Apache Kafka 3.9.1 instead of our own broker.")
    parser.add_argument("--bootstrap", help="Attack a broker that runs on this machine, at its SASL listener.")
    parser.add_argument("--pid", type=int, help="Process id of that broker, whose memory is watched.")
    parser.add_argument("--tls", help="The address of its listener with TLS.")
    parser.add_argument("--zookeeper", help="The address of its ZooKeeper.")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if options.bootstrap:
            target = given(options.bootstrap, options.pid, tls=options.tls, zookeeper=options.zookeeper)
        else:
            target = stack.enter_context(apache() if options.apache else ours())
        count = None if options.seconds else options.count
        report = attack_target(target, seed=options.seed, count=count, seconds=options.seconds)
    print(report)
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
