"""`barnabas console`: the cluster in a browser, in the foreground."""

from dataclasses import replace
from pathlib import Path

from barnabas.cli._needs import need
from barnabas.cli._registry import REGISTRY, registry_config
from barnabas.cli.tool import CONNECTION, Option, Tool
from barnabas.client.config import ClientConfig

TOOL = Tool(
    note="See [console](console.md).",
    about="""Shows topics, messages, groups, access, and the inside of barnabas brokers. Prints `ready console=URL` when
    browsers can connect. SIGTERM or Ctrl-C stops it.""",
    options=(
        *CONNECTION,
        Option("--port", "Port to listen on; 0 picks a free one.", int, default=8080),
        Option("--host", "Address to listen on.", metavar="ADDRESS", default="127.0.0.1"),
        Option("--read-write", "Allow changes; without it the console only reads.", bool),
        Option("--sign-in", "Ask for credentials of the cluster on loopback too; on other hosts it always does.", bool),
        Option("--ssl-certificate", "Serve HTTPS with this certificate (and chain).", metavar="FILE.pem"),
        Option("--ssl-key", "The key of the certificate.", metavar="FILE.pem"),
        Option("--behind-proxy", "There is a proxy in front that speaks HTTPS and sets X-Forwarded-For.", bool),
        replace(REGISTRY[0], help="A schema registry, to decode records and to show schemas."),
        replace(
            REGISTRY[1],
            help=f"{REGISTRY[1].help} With sign-in the registry is asked as the user, and the file has no credentials.",
        ),
        Option(
            "--inside",
            "Metrics ports with the inside of brokers: auto asks their settings; http://HOST:PORT of each metrics port, or "
            "http://{host}:9404 for all.",
            metavar="auto|none|URL,…",
            default="auto",
        ),
    ),
    examples=("barnabas console --bootstrap-server localhost:9092",),
)


@TOOL.main
def _console(
    client: ClientConfig,
    port: int,
    host: str,
    read_write: bool,
    sign_in: bool,
    ssl_certificate: str | None,
    ssl_key: str | None,
    behind_proxy: bool,
    schema_registry: str | None,
    schema_registry_config: Path | None,
    inside: str,
) -> int:
    need("console", "starlette", "uvicorn")
    from barnabas.cli import _service
    from barnabas.services.console import server
    from barnabas.services.console.settings import Settings

    _service.begin()
    settings = Settings(
        client=client,
        host=host,
        port=port,
        read_write=read_write,
        sign_in=sign_in,
        certificate=ssl_certificate,
        key=ssl_key,
        behind_proxy=behind_proxy,
        schema_registry=schema_registry,
        schema_registry_config=registry_config(schema_registry, schema_registry_config),
        inside=inside,
    )
    return server.run(settings, lambda url: _service.announce("console", url))
