"""`barnabas connect`: Kafka Connect's connectors, from their own files, on Spark."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from barnabas.cli import _service
from barnabas.cli._command import UsageError
from barnabas.cli._needs import need, need_java
from barnabas.cli.tool import CONNECTION, Argument, Option, Tool, excludes, needs
from barnabas.client.config import load_properties

TOOL = Tool(
    note="See [connect](connect.md).",
    about="""A connector's own JSON file, {"name": …, "config": {…}} or the config alone, runs as it is; of a folder, all its
    files. Options that cannot be honoured are refused by name before anything starts. Prints `ready connectors=…`. SIGTERM
    or Ctrl-C stops it; the next start goes on where this one ended.""",
    arguments=(
        Argument("places", "Files of connectors, or folders of them.", Path, many=True, what="a connector's file"),
    ),
    options=(
        *CONNECTION,
        Option(
            "--worker",
            "A worker's properties (connect-distributed.properties): bootstrap.servers, converters, client settings.",
            Path,
            metavar="FILE",
        ),
        Option(
            "--state",
            "The folder of checkpoints and of Spark's log.",
            Path,
            metavar="PATH",
            default=Path(".barnabas-connect"),
        ),
        Option("--master", "The Spark to run on: local[*], spark://host:port, …", metavar="URL", default="local[*]"),
        Option(
            "--rest-port", "Serve a part of Kafka Connect's REST on this port; 0 picks a free one.", int, metavar="N"
        ),
        Option("--rest-host", "Address of the REST interface.", metavar="ADDRESS", default="127.0.0.1"),
        Option(
            "--access",
            "REST: users, tokens, and who may read and change which connector; as of schema-registry.",
            Path,
            metavar="FILE.toml",
        ),
        Option("--ssl-certificate", "REST: serve HTTPS with this certificate (and chain).", metavar="FILE.pem"),
        Option("--ssl-key", "REST: the key of the certificate.", metavar="FILE.pem"),
        Option("--once", "End when everything that is there has been written.", bool),
        Option("--check", "Say whether the files can run, and start nothing.", bool),
    ),
    rules=(
        needs("--ssl-key", "--ssl-certificate"),
        needs("--access", "--rest-port"),
        needs("--ssl-certificate", "--rest-port"),
        excludes("--once", "--rest-port", says="--once ends by itself, and serves no REST"),
    ),
    examples=(
        "barnabas connect orders-sink.json --bootstrap-server localhost:9092",
        "barnabas connect connectors/ --bootstrap-server localhost:9092 --rest-port 8083",
        "barnabas connect connectors/ --worker connect-distributed.properties --check",
    ),
)


@TOOL.main
def _connect(
    places: Sequence[Path],
    bootstrap_server: str | None,
    command_config: str | None,
    worker: Path | None,
    state: Path,
    master: str,
    rest_port: int | None,
    rest_host: str,
    access: Path | None,
    ssl_certificate: str | None,
    ssl_key: str | None,
    once: bool,
    check: bool,
) -> int:
    commands = _commands()
    client = load_properties(command_config) if command_config else {}
    wanted = commands.Wanted(
        places=places,
        bootstrap=bootstrap_server or client.pop("bootstrap.servers", ""),
        client=client,
        worker_file=worker,
    )
    if check:
        commands.check(wanted)
        return 0
    if not places and rest_port is None:
        raise UsageError("connect needs a connector's file, or --rest-port to create connectors by requests")
    need_java()
    _service.begin()
    if rest_port is None:
        return int(commands.run(wanted, master=master, state=state, once=once))
    need("registry", "uvicorn")
    server = commands.RestServer(rest_host, rest_port, commands.access_of(access), ssl_certificate, ssl_key)
    return int(commands.run(wanted, master=master, state=state, once=False, rest=server))


def _commands() -> Any:
    """Import the module that does the work, or raise an error that says what to install."""
    need("spark", "pyspark", "pyarrow")
    return importlib.import_module("barnabas.spark.connect.command")
