"""`barnabas schema-registry`: one instance of a schema registry in the foreground."""

import getpass
import sys
from pathlib import Path

from barnabas.cli._command import UsageError
from barnabas.cli._connection import options
from barnabas.cli._needs import need
from barnabas.cli._output import say
from barnabas.cli.tool import CONNECTION, Option, Tool, needs

TOOL = Tool(
    note="See [schema registry](schema-registry.md).",
    about="""Keeps its state in the topic _schemas. Prints `ready schema-registry=URL` when clients can connect. SIGTERM or
    Ctrl-C stops it cleanly.""",
    options=(
        *CONNECTION,
        Option("--port", "Port to listen on; 0 picks a free one.", int, default=8081),
        Option("--host", "Address to listen on.", metavar="ADDRESS", default="127.0.0.1"),
        Option("--advertised-host", "Where other instances reach this one, if not at --host.", metavar="HOST"),
        Option("--topic", "The compacted topic that holds the schemas.", default="_schemas"),
        Option("--group", "Instances of one registry share it: one of them is the primary.", default="schema-registry"),
        Option("--compatibility", "The compatibility level where none is set.", metavar="LEVEL", default="BACKWARD"),
        Option("--eligible", "Whether this instance may become the primary.", bool, off="--not-eligible"),
        Option("--mode-changes", "Whether clients may change modes.", bool, off="--no-mode-changes"),
        Option("--access", "Users, tokens, and who may read and write which subject.", Path, metavar="FILE.toml"),
        Option("--ssl-certificate", "Serve HTTPS with this certificate (and chain).", metavar="FILE.pem"),
        Option("--ssl-key", "The key of the certificate.", metavar="FILE.pem"),
        Option("--ssl-ca", "Authorities of the other instances' certificates.", metavar="FILE.pem"),
        Option(
            "--session-timeout-ms",
            "A primary that is gone is replaced after this long.",
            int,
            metavar="MS",
            default=10_000,
        ),
        Option("--hash-password", "Read a password, print its line for the access file, and exit.", bool),
    ),
    rules=(needs("--ssl-key", "--ssl-certificate"),),
    examples=("barnabas schema-registry --bootstrap-server localhost:9092",),
)


@TOOL.main
def _registry(
    bootstrap_server: str | None,
    command_config: str | None,
    port: int,
    host: str,
    advertised_host: str | None,
    topic: str,
    group: str,
    compatibility: str,
    eligible: bool,
    mode_changes: bool,
    access: Path | None,
    ssl_certificate: str | None,
    ssl_key: str | None,
    ssl_ca: str | None,
    session_timeout_ms: int,
    hash_password: bool,
) -> int:
    need("registry", "httpx", "uvicorn")
    from barnabas.cli import _service
    from barnabas.services.registry import access as access_file
    from barnabas.services.registry import server
    from barnabas.services.registry.settings import LEVELS

    if hash_password:
        say(access_file.hash_password(_password()))
        return 0
    if compatibility.upper() not in LEVELS:
        raise UsageError(f"--compatibility {compatibility}: it must be one of {', '.join(LEVELS)}")
    _service.begin()
    config = server.ServerConfig(
        client=options(bootstrap_server, command_config),
        host=host,
        port=port,
        advertised_host=advertised_host,
        access=access_file.load(access) if access else access_file.OPEN,
        certificate=ssl_certificate,
        key=ssl_key,
        ca=ssl_ca,
        topic=topic,
        group_id=group,
        compatibility=compatibility.upper(),
        allow_mode_changes=mode_changes,
        eligible=eligible,
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=max(session_timeout_ms // 4, 1),
    )
    return server.run(config, lambda url: _service.announce("schema-registry", url))


def _password() -> str:
    return getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
