"""`barnabas console`: the cluster in a browser, in the foreground."""

import os
from pathlib import Path
from typing import Annotated

import typer

from barnabas.cli._connection import options
from barnabas.cli._needs import need
from barnabas.cli._tool import Bootstrap, CommandConfig
from barnabas.client.config import load_properties


def command(
    bootstrap_server: Bootstrap = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8080,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    command_config: CommandConfig = None,
    read_write: Annotated[
        bool, typer.Option("--read-write", help="Allow changes; without it the console only reads.")
    ] = False,
    sign_in: Annotated[
        bool,
        typer.Option(
            "--sign-in", help="Ask for credentials of the cluster on loopback too; on other hosts it always does."
        ),
    ] = False,
    ssl_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE.pem", help="Serve HTTPS with this certificate (and chain).")
    ] = None,
    ssl_key: Annotated[Path | None, typer.Option(metavar="FILE.pem", help="The key of the certificate.")] = None,
    behind_proxy: Annotated[
        bool,
        typer.Option("--behind-proxy", help="There is a proxy in front that speaks HTTPS and sets X-Forwarded-For."),
    ] = False,
    schema_registry: Annotated[
        str | None, typer.Option(metavar="URL", help="A schema registry, to decode records and to show schemas.")
    ] = None,
    schema_registry_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Settings for the registry: basic.auth.user.info, bearer.auth.token, ssl.ca.location. "
            "SCHEMA_REGISTRY_USER and SCHEMA_REGISTRY_TOKEN in the environment do as well. With sign-in the registry is "
            "asked as the user, and the file has no credentials.",
        ),
    ] = None,
    inside: Annotated[
        str,
        typer.Option(
            metavar="auto|none|URL,…",
            help="Metrics ports with the inside of brokers: auto asks their settings; http://HOST:PORT of each metrics port, "
            "or http://{host}:9404 for all.",
        ),
    ] = "auto",
) -> None:
    """Show a Kafka cluster in a browser: topics, messages, groups, access, and the inside of barnabas brokers.

    Prints `ready console=URL` when browsers can connect. SIGTERM or Ctrl-C stops it.
    """
    need("console", "starlette", "uvicorn")
    from barnabas.cli import _service
    from barnabas.services.console import server
    from barnabas.services.console.settings import Settings

    _service.begin()
    settings = Settings(
        client=options(bootstrap_server, command_config),
        host=host,
        port=port,
        read_write=read_write,
        sign_in=sign_in,
        certificate=str(ssl_certificate) if ssl_certificate else None,
        key=str(ssl_key) if ssl_key else None,
        behind_proxy=behind_proxy,
        schema_registry=schema_registry,
        schema_registry_config=_registry_config(schema_registry, schema_registry_config),
        inside=inside,
    )
    if code := server.run(settings, lambda url: _service.announce("console", url)):
        raise typer.Exit(code)


def _registry_config(url: str | None, file: Path | None) -> dict[str, str]:
    """Return the file's settings; without a file, credentials from the environment."""
    if file is not None:
        return load_properties(file)
    if url is None:
        return {}
    names = {"SCHEMA_REGISTRY_USER": "basic.auth.user.info", "SCHEMA_REGISTRY_TOKEN": "bearer.auth.token"}
    return {setting: os.environ[name] for name, setting in names.items() if os.environ.get(name)}
