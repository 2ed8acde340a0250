"""`barnabas host`: a broker for each core, in the foreground."""

import asyncio
import logging
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from barnabas.base.host import kernel
from barnabas.cli._command import UsageError
from barnabas.cli.tool import Argument, Option, Tool

if TYPE_CHECKING:
    from barnabas.cli.host.supervisor import Supervisor


def _count(text: str) -> int:
    if text == "auto":
        return kernel.processors()
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"--brokers {text}: give a number, or auto")
    return int(text)


TOOL = Tool(
    note="See [operating](operating.md).",
    about="""A broker uses one core. Broker number K (from 0) has the file's broker.id + K, its ports + K, and a folder
    broker-ID in each of its log.dirs. All have the file's broker.rack, or this host's name: so the replicas of a partition are
    not all on this host. (Every broker of the cluster needs a rack then.) barnabas.metrics.port serves the metrics of all,
    and /health and /ready.

    Prints `ready host …` when all are up. A broker that ends is started again. SIGHUP restarts them one after the other, each
    when the previous one is in sync. SIGTERM or Ctrl-C stops them cleanly.""",
    arguments=(
        Argument(
            "properties", "Kafka's server.properties, for the first broker.", metavar="FILE.properties", required=True
        ),
    ),
    options=(
        Option(
            "--brokers",
            "How many brokers. auto: as many as this process has cores.",
            _count,
            metavar="N|auto",
            default="auto",
        ),
        Option("--override", "A setting that wins over the file's.", metavar="K=V", many=True),
    ),
    examples=("barnabas host server.properties --brokers 4",),
)


@TOOL.main
def _host(properties: str, brokers: int, override: Sequence[str]) -> None:
    from barnabas.base.config import properties as files
    from barnabas.base.host.parent import die_with_parent
    from barnabas.base.log_format import log_to
    from barnabas.cli.host.settings import derive
    from barnabas.cli.host.supervisor import Supervisor

    settings = files.load(properties, override)
    hosted = derive(settings, brokers, host=socket.gethostname())
    overrides = [each for each in override if each.partition("=")[0] not in hosted[0].overrides]
    log_to(sys.stderr, level=logging.INFO)
    die_with_parent()
    port = int(settings.get("barnabas.metrics.port", "-1"))
    metrics = (settings.get("barnabas.metrics.host", "127.0.0.1"), port) if port >= 0 else None

    async def run() -> None:
        supervisor = Supervisor(hosted, properties, overrides=overrides, on_ready=_announce)
        await supervisor.run(metrics)

    asyncio.run(run())


def _announce(supervisor: "Supervisor") -> None:
    ids = ",".join(str(each.id) for each in supervisor.brokers)
    bootstrap = ",".join(each.listeners for each in supervisor.brokers)
    metrics = f" metrics={supervisor.server.url}" if supervisor.server.port >= 0 else ""
    sys.stdout.write(f"ready host brokers={ids} listeners={bootstrap}{metrics}\n")
    sys.stdout.flush()
