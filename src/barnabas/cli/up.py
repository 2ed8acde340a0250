"""`barnabas up`: a local cluster, as child processes."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from barnabas.cli import running
from barnabas.cli._command import UsageError, complain
from barnabas.cli._progress import telling
from barnabas.cli.local_cluster import ClusterFailed, LocalCluster
from barnabas.cli.tool import Option, Tool
from barnabas.services.doctor.finding import count

#: How often the processes are checked. A broker that has ended is only reported.
_WATCH_S = 0.5
#: The default port of Confluent's registry.
_REGISTRY_PORT = 8081
_CONSOLE_PORT = 8080
_FAULTS_PORT = 8089


TOOL = Tool(
    note="See [below](#a-cluster-in-the-background).",
    about="""Prints `ready bootstrap=…` when all are up. Ctrl-C or SIGTERM stops it cleanly, and so does `barnabas down` from
    anywhere. `barnabas status` shows it, `barnabas restart N` restarts a broker.""",
    options=(
        Option("--brokers", "How many brokers; their ids are 1 to N.", int, default=3),
        Option("--port", "Port of the first broker; the others follow. 0 picks free ones.", int, default=9092),
        Option("--host", "Address to listen on.", metavar="ADDRESS", default="127.0.0.1"),
        Option(
            "--advertised-host",
            "The name that clients connect to, if it is not --host: needed for 0.0.0.0.",
            metavar="NAME",
        ),
        Option("--data", "Folder for all files. Without it, a temporary one, deleted at the end.", Path),
        Option("--zookeeper", "Use this ZooKeeper instead of the embedded one.", metavar="HOST:PORT/PATH"),
        Option("--config", "A setting of every broker.", metavar="K=V", many=True),
        Option("--schema-registry", "Also a schema registry, on port 8081 (with --port 0, a free one).", bool),
        Option("--console", "Also a console for the browser, on port 8080 (with --port 0, a free one).", bool),
        Option("--tables", "Also Spark, to fill the tables of `barnabas tables add`; needs Java.", bool),
        Option("--secure", "TLS with an authority of its own, SCRAM users, ACLs; prints clients' settings.", bool),
        Option("--faults", "Take faults, by `barnabas fault` and HTTP on port 8089 (with --port 0, a free one).", bool),
        Option("--detach", "Return when it is ready; it runs until `barnabas down`.", bool),
    ),
    examples=("barnabas up", "barnabas up --brokers 1 --detach --console", "barnabas up --data ./data --secure"),
)


@TOOL.main
def _up(
    brokers: int,
    port: int,
    host: str,
    advertised_host: str | None,
    data: Path | None,
    zookeeper: str | None,
    config: Sequence[str],
    schema_registry: bool,
    console: bool,
    tables: bool,
    secure: bool,
    faults: bool,
    detach: bool,
) -> int:
    from barnabas.base.config.properties import parse_overrides

    if brokers < 1:
        raise UsageError("--brokers must be at least 1")
    if port and not 0 < port <= 65536 - brokers:
        raise UsageError(f"--port {port}: there is no room for {brokers} ports above it")
    if host in ("0.0.0.0", "::", "") and advertised_host is None:
        raise UsageError(
            f"--host {host} listens on all addresses: give --advertised-host, the name that clients connect to"
        )
    if tables:
        from barnabas.cli.tables import check_installed

        check_installed(java=True)
    folder = _usable(data.absolute()) if data else None
    if folder is not None and (others := running.on_folder(running.running_clusters(), folder)):
        raise ClusterFailed(
            f"a cluster runs on {folder} (process {others[0].pid}); `barnabas down --data {folder}` stops it"
        )
    kind = LocalCluster
    if faults:
        from barnabas.cli.faults.cluster import FaultyCluster

        kind = FaultyCluster
    cluster = kind(
        brokers=brokers,
        host=host,
        port=port,
        advertised_host=advertised_host,
        data=folder,
        zookeeper=zookeeper,
        config=parse_overrides(config, option="--config"),
        secure=secure,
        schema_registry=schema_registry,
        schema_registry_port=_REGISTRY_PORT if port else 0,
        console=console,
        console_port=_CONSOLE_PORT if port else 0,
        tables=tables,
    )
    if detach and (code := running.detach(folder)) is not None:
        if code == 0:
            complain("`barnabas status` shows it, `barnabas down` stops it")
        return code
    _serve(cluster, faults_port=(_FAULTS_PORT if port else 0) if faults else None)
    return 0


def _serve(cluster: LocalCluster, *, faults_port: int | None) -> None:
    """Run until a signal, `barnabas down`, or the end of the last broker."""
    _stop_on_signals()
    try:
        with ExitStack() as stack:
            with telling(f"starting ZooKeeper and {count(cluster.brokers, 'broker')}"):
                stack.enter_context(cluster)
            if cluster.secure:
                _print_client_settings(cluster)
            _print_places(cluster)
            with running.Reception(cluster, faults_port=faults_port) as reception:
                beside = f" schema-registry={cluster.schema_registry_url}" if cluster.schema_registry else ""
                beside += f" console={cluster.console_url}" if cluster.console else ""
                beside += f" faults={reception.faults_url}" if reception.faults_url else ""
                sys.stdout.write(f"ready bootstrap={cluster.bootstrap}{beside}\n")
                sys.stdout.flush()
                if not cluster.secure:
                    address = cluster.address(1)
                    sys.stderr.write(f"try: barnabas topics --bootstrap-server {address} --create --topic orders\n")
                    sys.stderr.write(f"     barnabas doctor --bootstrap-server {address}\n")
                _watch(cluster, reception)
    except _Stop:
        return


def _usable(folder: Path) -> Path:
    """Return a folder that can be created and written to, or report the problem here in one line."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"--data {folder}: it is a file; name a folder") from None
    except OSError as error:
        raise UsageError(f"--data {folder}: it cannot be created: {error.strerror}") from None
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise UsageError(f"--data {folder}: you may not write there; choose another folder, or change its owner")
    return folder


def _print_places(cluster: LocalCluster) -> None:
    """Print on stderr, because scripts read one line of standard output."""
    lines = [f"ZooKeeper at {cluster.zookeeper_connect}", f"logs in {cluster.folder}/*.log"]
    if cluster.min_insync_replicas > 1:
        lines.append(f"writes with acks=all need {_needed(cluster)}")
    sys.stderr.write("".join(f"{line}\n" for line in lines))


def _needed(cluster: LocalCluster) -> str:
    return f"{cluster.min_insync_replicas} of the {cluster.brokers} brokers (min.insync.replicas)"


def _print_client_settings(cluster: LocalCluster) -> None:
    """Print settings to paste. The user client may use topics, groups and transactions; admin may do everything."""
    for user, may in (("client", "topics, groups, transactions"), ("admin", "everything")):
        file = cluster.command_config(user)
        lines = [
            f"user {user} ({may})",
            f"  barnabas and kafka-*.sh tools: --bootstrap-server {cluster.address(1)} --command-config {file}",
            f"  Java client: the settings in {file}",
            "  confluent-kafka, kcat and others on librdkafka:",
            *(f"    {name}={value}" for name, value in cluster.librdkafka_settings(user).items()),
        ]
        sys.stdout.write("\n".join(lines) + "\n\n")


class _Stop(BaseException):
    """Raised by a signal, in whatever code is running."""


def _stop_on_signals() -> None:
    def at_once(number: int, frame: FrameType | None) -> None:
        # A second Ctrl-C: exit without waiting. The launcher still stops the processes.
        os._exit(130)

    def handle(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, at_once)
        raise _Stop

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def _watch(cluster: LocalCluster, reception: running.Reception) -> None:
    """Wait until no broker is left, report each broker that ends, and execute what other commands ask."""
    gone: set[int] = set()
    while len(gone) < cluster.brokers or reception.faults_url:  # a fault may have taken all brokers away
        reception.serve(_WATCH_S)
        for broker_id in cluster.broker_ids:
            code = cluster.member(broker_id).exit_code
            if code is None:
                gone.discard(broker_id)  # the broker was started again
            elif broker_id not in gone:
                gone.add(broker_id)
                last = "".join(cluster.log(broker_id).strip().splitlines()[-1:])
                sys.stderr.write(f"{time.strftime('%H:%M:%S')} broker {broker_id} ended with status {code}: {last}\n")
                if cluster.brokers - len(gone) < cluster.min_insync_replicas:
                    sys.stderr.write(f"writes with acks=all are refused from now on: they need {_needed(cluster)}\n")
    raise ClusterFailed("every broker has ended")
