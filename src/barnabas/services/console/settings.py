"""The settings of a console."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from barnabas.base.hosts import is_loopback
from barnabas.client.config import ClientConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    client: ClientConfig
    host: str = "127.0.0.1"
    port: int = 8080
    #: Whether changes are allowed.
    read_write: bool = False
    #: Users sign in with credentials of the cluster. Always on if other machines can connect.
    sign_in: bool = False
    #: PEM files for HTTPS.
    certificate: str | None = None
    key: str | None = None
    #: A proxy in front of the console provides HTTPS, and sends the client's address in `X-Forwarded-For`.
    behind_proxy: bool = False
    #: `http://host:port[,…]` of a schema registry; None: records with schemas are shown as bytes.
    schema_registry: str | None = None
    #: Settings of its client, by Confluent's names. Without credentials if users sign in: then their own are used.
    schema_registry_config: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Addresses of the brokers' internal views: `auto` (from their settings), `none`, or URLs.
    inside: str = "auto"

    @property
    def needs_sign_in(self) -> bool:
        return self.sign_in or not is_loopback(self.host)

    @property
    def is_https(self) -> bool:
        """Whether the browser sees HTTPS."""
        return self.certificate is not None or self.behind_proxy
