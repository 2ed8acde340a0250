"""What the demo shows: a live panel in a terminal, a line now and then elsewhere."""

import time

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from job import QUERIES, Job
from orders import ORDERS, Stream
from rich.columns import Columns
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table

from barnabas.cli.local_cluster import LocalCluster


class View:
    def __init__(self, console: Console, cluster: LocalCluster, stream: Stream, job: Job) -> None:
        self.console = console
        self.cluster = cluster
        self.stream = stream
        self.job = job
        self.said: list[str] = []
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        self._before = (time.monotonic(), 0)
        self._leaders: dict[int, tuple[int, list[int]]] = {}

    def say(self, line: str) -> None:
        self.said.append(line)
        if not self.console.is_terminal:
            self.console.print(line)

    def leaders(self) -> dict[int, tuple[int, list[int]]]:
        try:
            partitions = self._admin.list_topics(ORDERS, timeout=1).topics[ORDERS].partitions
            self._leaders = {n: (p.leader, sorted(p.isrs)) for n, p in sorted(partitions.items())}
        except KafkaException:
            # The broker that was asked is the one that died: the view shows what it knew, and asks again.
            return self._leaders
        return self._leaders

    def render(self) -> Group:
        return Group(
            Columns([self._brokers(), self._partitions()], expand=True, equal=True),
            self._flow(),
            self._pipeline(),
            Panel("\n".join(self.said[-9:]), title="story"),
        )

    def _brokers(self) -> Table:
        brokers = Table("id", "address", "process", title="brokers", expand=True)
        for broker_id in self.cluster.broker_ids:
            running = self.cluster.member(broker_id).running
            state = f"[green]pid {self.cluster.pid(broker_id)}[/]" if running else "[red]dead[/]"
            brokers.add_row(str(broker_id), self.cluster.address(broker_id), state)
        return brokers

    def _partitions(self) -> Table:
        partitions = Table("partition", "leader", "in sync", title=f"topic {ORDERS}", expand=True)
        for number, (leader, isr) in self.leaders().items():
            members = ", ".join(map(str, isr))
            partitions.add_row(str(number), str(leader), members if len(isr) == 3 else f"[yellow]{members}[/]")
        return partitions

    def _flow(self) -> Panel:
        now, count = time.monotonic(), sum(self.stream.acknowledged.values())
        rate = (count - self._before[1]) / max(now - self._before[0], 0.001)
        self._before = (now, count)
        lag = max(count - sum(self.stream.received.values()), 0)  # what has arrived may not be acknowledged yet
        return Panel(
            f"{rate:,.0f} orders/s acknowledged   {count:,} orders   warehouse lags by {lag:,}", title="stream"
        )

    def _pipeline(self) -> Table:
        table = Table("query", "batch", "rows", "rows/s", "batch time", "lag", title="Spark pipeline", expand=True)
        acknowledged = sum(self.stream.acknowledged.values())
        for query in QUERIES:
            progress = self.job.progress.get(query)
            if progress is None:
                table.add_row(query, "[dim]starting[/]")
                continue
            lag = max(acknowledged - sum(progress["ends"].get(ORDERS, {}).values()), 0)
            table.add_row(
                query,
                str(progress["batch"]),
                f"{self.job.rows[query]:,}",
                f"{progress['rows_per_second'] or 0:,.0f}",
                f"{progress['batch_ms']:,} ms",
                f"{lag:,}",
            )
        return table
