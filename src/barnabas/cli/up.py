"""`barnabas up`: a local cluster, as child processes."""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from barnabas.cli._cluster import ClusterPlan, free_port
from barnabas.cli._processes import BROKER_ENTRY, ZOOKEEPER_ENTRY, Processes, ProcessFailed
from barnabas.cli._tool import UsageError, pairs, say, say_json

_READY_TIMEOUT_S = 60.0


def command(
    brokers: Annotated[int, typer.Option(help="How many brokers; their ids are 1 to N.")] = 3,
    port: Annotated[int, typer.Option(help="Port of the first broker; the others follow. 0 picks free ones.")] = 9092,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    data: Annotated[
        Path | None, typer.Option(help="Folder for everything. Without it, a temporary one goes with the cluster.")
    ] = None,
    zookeeper: Annotated[
        str | None, typer.Option(metavar="HOST:PORT/PATH", help="Use this ZooKeeper instead of the embedded one.")
    ] = None,
    config: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A setting of every broker.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
) -> None:
    """Start a local cluster: a coordinator and N brokers.

    Prints `ready bootstrap=…` when all are up. Ctrl-C or SIGTERM stops it cleanly.
    """
    if brokers < 1:
        raise UsageError("--brokers must be at least 1")
    if port and not 0 < port <= 65536 - brokers:
        raise UsageError(f"--port {port}: there is no room for {brokers} ports above it")
    folder = data.absolute() if data else Path(tempfile.mkdtemp(prefix="barnabas-up-"))
    folder.mkdir(parents=True, exist_ok=True)
    connect = zookeeper or f"127.0.0.1:{free_port()}"
    plan = ClusterPlan(
        brokers=brokers,
        host=host,
        port=port,
        data=folder,
        zookeeper=connect,
        config=pairs(config or (), option="--config"),
    )
    failure = None
    _stop_on_signals()
    with Processes() as processes:
        try:
            if data is None:
                processes.remove_at_exit(folder)
            names = _start(processes, plan, embedded=zookeeper is None)
            processes.wait_ready(names, _READY_TIMEOUT_S)
            _announce(processes, plan, json=json)
            failure = _watch(processes, names)
        except _Stop:
            failure = None
    if failure is not None:
        raise ProcessFailed(failure)


def _start(processes: Processes, plan: ClusterPlan, *, embedded: bool) -> list[str]:
    """All at once: a broker tries until the coordinator answers."""
    names = []
    if embedded:
        host, _, port = plan.zookeeper.rpartition(":")
        settings = {"data": str(plan.data / "zookeeper"), "host": host, "port": int(port)}
        processes.start("zookeeper", ZOOKEEPER_ENTRY, settings, log=plan.data / "zookeeper.log")
        names.append("zookeeper")
    for broker_id in plan.broker_ids:
        name = plan.broker_name(broker_id)
        log = plan.data / f"{name}.log"
        processes.start(name, BROKER_ENTRY, plan.settings(broker_id), log=log, stop_order=1)
        names.append(name)
    return names


def _announce(processes: Processes, plan: ClusterPlan, *, json: bool) -> None:
    addresses = []
    for broker_id in plan.broker_ids:
        facts = processes[plan.broker_name(broker_id)].facts or {}
        port = next(iter(facts["ports"].values()))
        addresses.append(f"{'127.0.0.1' if plan.host in ('0.0.0.0', '::') else plan.host}:{port}")
    bootstrap = ",".join(addresses)
    if json:
        say_json({"bootstrap": bootstrap, "zookeeper": plan.zookeeper, "data": str(plan.data)})
    else:
        say(f"ready bootstrap={bootstrap}")
    sys.stdout.flush()


class _Stop(BaseException):
    """A signal came, wherever we were."""


def _stop_on_signals() -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        # A second Ctrl-C: the user does not want to wait. The zygote still stops what runs.
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda number, frame: os._exit(130))
        raise _Stop

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def _watch(processes: Processes, names: list[str]) -> str:
    """Until there is no cluster left: why."""
    gone: set[str] = set()
    while True:
        processes.wait_event(3600)
        for name in names:
            server = processes[name]
            if server.exit_status is None or name in gone:
                continue
            gone.add(name)
            at = time.strftime("%H:%M:%S")
            sys.stderr.write(f"{at} {name} ended with status {server.exit_status}: {server.log_tail(1)}\n")
            if name == "zookeeper":
                return "the coordinator has ended; stopping the brokers"
        if all(name in gone for name in names if name != "zookeeper"):
            return "every broker has ended"
