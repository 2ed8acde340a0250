"""`barnabas console`: the cluster in a browser, in the foreground."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from barnabas.cli._tool import Bootstrap, CommandConfig, options
from barnabas.core.errors import ConfigError


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
    needs_console()
    from barnabas.console import server
    from barnabas.console.settings import Settings
    from barnabas.core.log_format import log_to
    from barnabas.runtime.parent import die_with_parent

    die_with_parent()
    log_to(sys.stderr, level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
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
        inside=inside,
    )
    if code := server.run(settings, _announce):
        raise typer.Exit(code)


def _announce(url: str) -> None:
    sys.stdout.write(f"ready console={url}\n")
    sys.stdout.flush()


def needs_console() -> None:
    """Before anything of `barnabas.console` is imported: what is missing, and how to get it."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'barnabas[console]'") from None
