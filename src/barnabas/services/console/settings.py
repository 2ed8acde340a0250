"""What a console is started with."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from barnabas.base.hosts import is_loopback
from barnabas.client.config import ClientConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    client: ClientConfig
    host: str = "127.0.0.1"
    port: int = 8080
    #: Changes are refused without it.
    read_write: bool = False
    #: Everybody signs in with credentials of the cluster. Always so where others than this machine can connect.
    sign_in: bool = False
    #: PEM files for HTTPS.
    certificate: str | None = None
    key: str | None = None
    #: A proxy in front of the console speaks HTTPS, and says in `X-Forwarded-For` who asks.
    behind_proxy: bool = False
    #: `http://host:port[,…]` of a schema registry; None: records of registered schemas are shown as bytes.
    schema_registry: str | None = None
    #: Its client's settings, by Confluent's names. With sign-in there are no credentials in it: users sign in with their own.
    schema_registry_config: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Where brokers show their inside: `auto` (their settings say it), `none`, or addresses.
    inside: str = "auto"

    @property
    def needs_sign_in(self) -> bool:
        return self.sign_in or not is_loopback(self.host)

    @property
    def is_https(self) -> bool:
        """As the browser sees it."""
        return self.certificate is not None or self.behind_proxy
