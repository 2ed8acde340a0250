"""`barnabas schema-registry`: one instance of a schema registry in the foreground."""

from pathlib import Path
from typing import Annotated

import typer

from barnabas.cli._command import UsageError
from barnabas.cli._connection import options
from barnabas.cli._needs import need
from barnabas.cli._output import say
from barnabas.cli._tool import Bootstrap, CommandConfig


def command(
    bootstrap_server: Bootstrap = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8081,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    advertised_host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Where other instances reach this one, if not at --host.")
    ] = None,
    command_config: CommandConfig = None,
    topic: Annotated[str, typer.Option(help="The compacted topic that holds the schemas.")] = "_schemas",
    group: Annotated[
        str, typer.Option(help="Instances of one registry share it: one of them is the primary.")
    ] = "schema-registry",
    compatibility: Annotated[
        str, typer.Option(metavar="LEVEL", help="The compatibility level where none is set.")
    ] = "BACKWARD",
    eligible: Annotated[
        bool, typer.Option("--eligible/--not-eligible", help="Whether this instance may become the primary.")
    ] = True,
    mode_changes: Annotated[
        bool, typer.Option("--mode-changes/--no-mode-changes", help="Whether clients may change modes.")
    ] = True,
    access: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="Users, tokens, and who may read and write which subject.")
    ] = None,
    ssl_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE.pem", help="Serve HTTPS with this certificate (and chain).")
    ] = None,
    ssl_key: Annotated[Path | None, typer.Option(metavar="FILE.pem", help="The key of the certificate.")] = None,
    ssl_ca: Annotated[
        Path | None, typer.Option(metavar="FILE.pem", help="Authorities of the other instances' certificates.")
    ] = None,
    session_timeout_ms: Annotated[
        int, typer.Option(metavar="MS", help="A primary that is gone is replaced after this long.")
    ] = 10_000,
    hash_password: Annotated[
        bool, typer.Option("--hash-password", help="Read a password, print its line for the access file, and exit.")
    ] = False,
) -> None:
    """Run a schema registry: Confluent's REST API, its state in the topic _schemas.

    Prints `ready schema-registry=URL` when clients can connect. SIGTERM or Ctrl-C stops it cleanly.
    """
    need("registry", "httpx", "uvicorn")
    from barnabas.cli import _service
    from barnabas.services.registry import access as access_file
    from barnabas.services.registry import server
    from barnabas.services.registry.settings import LEVELS

    if hash_password:
        say(access_file.hash_password(typer.prompt("Password", hide_input=True, err=True)))
        return
    if compatibility.upper() not in LEVELS:
        raise UsageError(f"--compatibility {compatibility}: it must be one of {', '.join(LEVELS)}")
    if ssl_key is not None and ssl_certificate is None:
        raise UsageError("--ssl-key needs --ssl-certificate")
    _service.begin()
    config = server.ServerConfig(
        client=options(bootstrap_server, command_config),
        host=host,
        port=port,
        advertised_host=advertised_host,
        access=access_file.load(access) if access else access_file.OPEN,
        certificate=str(ssl_certificate) if ssl_certificate else None,
        key=str(ssl_key) if ssl_key else None,
        ca=str(ssl_ca) if ssl_ca else None,
        topic=topic,
        group_id=group,
        compatibility=compatibility.upper(),
        allow_mode_changes=mode_changes,
        eligible=eligible,
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=max(session_timeout_ms // 4, 1),
    )
    if code := server.run(config, lambda url: _service.announce("schema-registry", url)):
        raise typer.Exit(code)
