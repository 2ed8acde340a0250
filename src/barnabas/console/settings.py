"""What a console is started with."""

from dataclasses import dataclass

from barnabas.client.config import ClientConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    client: ClientConfig
    host: str = "127.0.0.1"
    port: int = 8080
    #: Changes are refused without it.
    read_write: bool = False
    #: `http://host:port[,…]` of a schema registry; None: records of registered schemas are shown as bytes.
    schema_registry: str | None = None
