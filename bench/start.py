"""How long one broker and three take to start, beside Apache Kafka 3.9.1: `python -m bench start [-- --rounds 5]`.

Every process is cold. One broker: from exec to ready, with a running ZooKeeper. Three: `barnabas up --brokers 3` from exec to
its `ready` line, including the embedded ZooKeeper; Kafka's three are started at once beside a running ZooKeeper, until all
ports are open. The test cluster is the second one of a process, as in a session of pytest.
"""

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack

from barnabas.cli.local_cluster import LocalCluster
from barnabas.testing import Cluster
from bench import as_installed
from bench.broker import kafka_start_s, our_start_s
from bench.kafka import ApacheKafka
from bench.limits import python_start
from bench.report import Row, announce, write_report

READY = b"ready bootstrap="


def up_s(folder: str) -> float:
    """Measure `barnabas up --brokers 3` as a separate process."""
    command = [sys.executable, "-m", "barnabas", "up", "--brokers", "3", "--port", "0"]
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        environment = {**as_installed(folder), "HOME": home, "XDG_RUNTIME_DIR": home}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, cwd=home
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(READY):
                    break
            else:
                raise RuntimeError(f"`barnabas up` ended with {process.wait()}")
            took_s = time.monotonic() - began_s
            process.send_signal(signal.SIGTERM)
    return took_s


def test_cluster_s() -> float:
    began_s = time.monotonic()
    with Cluster(brokers=1):
        return time.monotonic() - began_s


def run(rounds: int) -> None:
    announce("start", rounds, round_s=14, setup_s=15)
    found: dict[str, tuple[list[float], list[float]]] = {}

    def note(name: str, ours_s: float, theirs_s: float) -> None:
        for into, value in zip(found.setdefault(name, ([], [])), (ours_s, theirs_s), strict=True):
            into.append(value)

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        ours = stack.enter_context(LocalCluster(brokers=1))
        kafka = stack.enter_context(ApacheKafka(brokers=1))
        up_s(folder)  # compiles
        our_start_s(ours.zookeeper_connect, 0, folder)
        stack.enter_context(Cluster(brokers=1))  # starts the launcher that forks the next clusters
        for number in range(1, rounds + 1):
            one_s = our_start_s(ours.zookeeper_connect, number, folder)
            note("one broker, s", one_s, kafka_start_s(kafka))
            note("three brokers, s", up_s(folder), kafka_start_s(kafka, brokers=3))
            note("a test's cluster of one, after the first, s", test_cluster_s(), found["one broker, s"][1][-1])
            print(f"round {number} of {rounds} done", flush=True)
    limit = python_start()
    rows = [
        Row(name, statistics.median(ours_s), statistics.median(theirs_s), limit.value)
        for name, (ours_s, theirs_s) in found.items()
    ]
    write_report("start", "From nothing to ready", rows, rounds=rounds, raw=found, limits=[limit])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    run(parser.parse_args(arguments).rounds)


if __name__ == "__main__":
    main()
