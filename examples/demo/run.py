"""The demo: three brokers, a stream of orders, a Spark pipeline, a leader that dies in front of you, and every record counted.

`make demo` runs it and ends by itself; `make demo KEEP=1` leaves everything up until Ctrl-C, the console with it. In a
terminal it shows a live view, elsewhere it prints plain lines.
"""

import argparse
import importlib.util
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from job import Job, count
from orders import DEAD, ENRICHED, ORDERS, TOTALS, Stream, create_topics
from rich.console import Console
from rich.live import Live
from view import View

from barnabas.cli.local_cluster import LocalCluster

#: Where the tools are: the demo runs without its environment being activated.
BIN = Path(os.path.relpath(sys.executable)).parent
#: Spark takes ten seconds on an idle machine, and minutes where others use it too.
PATIENCE_S = 300


class Story:
    """What happens, in order. Each step waits for what it tells of, with a deadline."""

    def __init__(self, view: View, refresh: Callable[[], None]) -> None:
        self._view = view
        self._cluster = view.cluster
        self._stream = view.stream
        self._job = view.job
        self._refresh = refresh

    def tell(self) -> bool:
        if not self._begin():
            self._view.say(f"the pipeline did not start: {self._job.why()}")
            self._refresh()
            return False
        self._kill_a_leader()
        self._heal()
        return self._count()

    def _watch(self, seconds: float) -> None:
        self._until(lambda: False, seconds)

    def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not (met := condition()) and time.monotonic() < deadline and not self._job.failed:
            self._refresh()
            time.sleep(0.25)
        return met

    def _begin(self) -> bool:
        self._view.say(f"three brokers are up at {self._cluster.bootstrap}")
        if self._cluster.console:
            self._view.say(f"watch from the inside: {self._cluster.console_url}/inside/partitions/{ORDERS}/0")
        self._view.say("orders flow: an idempotent producer with acks=all, a consumer group behind it")
        self._view.say("Spark starts: a join with a table topic, dead letters, window totals, Delta")
        if not self._until(lambda: self._job.under_way, PATIENCE_S):
            return False
        self._view.say("the pipeline runs: three queries, exactly once into topics, no JAR")
        self._watch(5)
        return True

    def _leader(self) -> int:
        return self._view.leaders()[0][0]

    def _kill_a_leader(self) -> None:
        self._dead = self._leader()
        self._view.say(f"kill -9 of broker {self._dead}, which leads partition 0")
        self._stream.longest_gap_s = 0.0
        self._cluster.kill(self._dead)
        self._until(lambda: self._leader() not in (self._dead, -1), PATIENCE_S)
        self._view.say(f"partition 0 is led by broker {self._leader()} now; producer and pipeline go on")
        self._watch(4)
        gap = f"{self._stream.longest_gap_s:.1f} s"
        self._view.say(f"the longest gap between two acknowledgements was {gap} (session time-out: 6 s)")

    def _heal(self) -> None:
        self._cluster.start_broker(self._dead)
        self._view.say(f"broker {self._dead} is back on its data and catches up")
        self._until(lambda: all(len(isr) == 3 for _, isr in self._view.leaders().values()), PATIENCE_S)
        self._view.say("all three replicas of every partition are in sync again")

    def _count(self) -> bool:
        stream = self._stream
        stream.stop.set()
        self._until(stream.drained.is_set, PATIENCE_S)
        acknowledged = len(stream.acknowledged)
        self._until(lambda: self._job.has_read(acknowledged), PATIENCE_S)
        lost = stream.acknowledged.keys() - stream.received.keys()
        twice = [order for order, times in stream.received.items() if times > 1]
        self._view.say(f"{acknowledged:,} orders acknowledged; warehouse: {len(lost)} lost, {len(twice)} twice")
        if self._job.failed:
            self._view.say(f"the pipeline failed: {self._job.why()}")
            self._refresh()
            return False
        outcome = count(self._cluster.bootstrap, self._job.folder)
        self._view.say(
            f"pipeline: {outcome.enriched:,} enriched + {outcome.dead:,} dead letters = {acknowledged:,}; "
            f"{outcome.in_windows:,} in windows; {outcome.in_table:,} rows in Delta; none twice"
            if outcome.matches(stream)
            else f"pipeline: {outcome}, but {acknowledged:,} orders, {len(stream.bad):,} of them bad"
        )
        self._refresh()
        return not lost and not twice and not stream.failed and outcome.matches(stream)


def has_console() -> bool:
    """`pip install barnabas[console]`"""
    return all(importlib.util.find_spec(name) is not None for name in ("starlette", "uvicorn"))


def show(console: Console, view: View) -> bool:
    if not console.is_terminal:
        return Story(view, lambda: None).tell()
    with Live(view.render(), console=console, auto_refresh=False) as live:
        return Story(view, lambda: live.update(view.render(), refresh=True)).tell()


def where_to_look(console: Console, cluster: LocalCluster, folder: Path, *, keep: bool) -> None:
    if not keep:
        console.print("make demo KEEP=1 leaves everything up, to look around in it")
        return
    server = f"--bootstrap-server {cluster.bootstrap}"
    for command in (
        f"topics {server} --describe --topic {ORDERS}",
        f"consumer-groups {server} --describe --all-groups",
        f"console-consumer {server} --topic {ENRICHED} --from-beginning --isolation-level read_committed",
        f"console-consumer {server} --topic {TOTALS} --from-beginning --property print.key=true",
        f"console-consumer {server} --topic {DEAD} --from-beginning",
    ):
        console.print(f"{BIN}/barnabas {command}", soft_wrap=True)
    console.print(f"the Delta table is in {folder / 'orders'}", soft_wrap=True)
    if cluster.console:
        console.print(f"the console is at {cluster.console_url}", soft_wrap=True)
    console.print("everything stays up; Ctrl-C ends it")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        console.print("stopping")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything up until Ctrl-C")
    options = parser.parse_args()
    console = Console()
    cluster = LocalCluster(brokers=3, console=has_console())
    with tempfile.TemporaryDirectory(prefix="barnabas-demo-") as temporary, cluster:
        folder = Path(temporary)
        create_topics(cluster.bootstrap)
        stream = Stream(cluster.bootstrap)
        threads = [
            threading.Thread(target=stream.produce, args=(42,), name="producer"),
            threading.Thread(target=stream.consume, name="consumer"),
        ]
        with Job(cluster.bootstrap, folder) as job:
            for thread in threads:
                thread.start()
            try:
                good = show(console, View(console, cluster, stream, job))
            finally:
                stream.stop.set()
                stream.drained.set()
                for thread in threads:
                    thread.join()
            verdict = (
                "[bold green]every acknowledged order arrived, once[/]" if good else "[bold red]it does not add up[/]"
            )
            console.print(verdict)
            where_to_look(console, cluster, folder, keep=options.keep)
        return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
