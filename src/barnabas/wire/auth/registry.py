"""The SASL mechanisms, on both sides. A mechanism registers itself: see the package `mechanisms`.

A side is built once from settings, which it checks. It then begins an exchange for each authentication.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.base.config.definition import Value
from barnabas.base.errors import ConfigError
from barnabas.wire.auth.exchange import ClientExchange, ServerExchange
from barnabas.wire.auth.jaas import JaasEntry, parse_jaas

if TYPE_CHECKING:
    from barnabas.wire.auth.jwt import Jwt
    from barnabas.wire.auth.mechanisms.scram import ScramCredential, ScramMechanism, TokenCredential


@dataclass(frozen=True, slots=True)
class KeySetSettings:
    """The URL of the keys that sign tokens, and how often they are loaded again."""

    url: str
    refresh_ms: int
    backoff_ms: int
    backoff_max_ms: int
    #: The setting's name, for errors and logs.
    setting: str = "sasl.oauthbearer.jwks.endpoint.url"


class ListenerSasl(Protocol):
    """What the server side of a mechanism can use: the settings of its listener, and the broker's state."""

    @property
    def listener(self) -> str: ...

    def setting(self, name: str) -> Value:
        """Return the listener's value for this mechanism, else the listener's, else the broker's."""
        ...

    def jaas(self) -> JaasEntry:
        """:raises ConfigError: if `sasl.jaas.config` is not set, or cannot be parsed."""
        ...

    def now_ms(self) -> int:
        """Return wall-clock time."""
        ...

    def scram_credential(self, mechanism: "ScramMechanism", user: str) -> "ScramCredential | None": ...
    def delegation_token(self, mechanism: "ScramMechanism", token_id: str) -> "TokenCredential | None": ...

    def key_set(self, settings: KeySetSettings) -> "Callable[[Jwt], None]":
        """Return a function that raises `InvalidToken` unless a key of the set has signed the token."""
        ...


class Tokens(Protocol):
    """The source of a login's tokens. Getting one may block, so a caller on an event loop does it on a thread."""

    @property
    def is_fresh(self) -> bool: ...
    def get(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Login:
    """The client side of a mechanism."""

    begin: Callable[[], ClientExchange]
    tokens: Tokens | None = None


ServerSide = Callable[[ListenerSasl], Callable[[], ServerExchange]]
ClientSide = Callable[[Mapping[str, str]], Login]

_servers: Final[dict[str, ServerSide]] = {}
_clients: Final[dict[str, ClientSide]] = {}
#: The settings that a broker's own logins at other brokers need, in the order in which mechanisms registered.
_login_settings: Final[dict[str, None]] = {"sasl.jaas.config": None}


def server_side(*names: str) -> Callable[[ServerSide], ServerSide]:
    """Register the function that turns a listener's settings into one that begins exchanges."""

    def register(side: ServerSide) -> ServerSide:
        _servers.update(dict.fromkeys(names, side))
        return side

    return register


def client_side(*names: str, settings: tuple[str, ...] = ()) -> Callable[[ClientSide], ClientSide]:
    """Register how a client's settings become a login. `settings` are those that it reads besides `sasl.jaas.config`."""

    def register(side: ClientSide) -> ClientSide:
        _clients.update(dict.fromkeys(names, side))
        _login_settings.update(dict.fromkeys(settings))
        return side

    return register


def _load() -> None:
    """Import the mechanisms at the first use, because they import this module."""
    import barnabas.wire.auth.mechanisms  # noqa: F401  # each registers itself


def login_settings() -> tuple[str, ...]:
    _load()
    return tuple(_login_settings)


def server_of(name: str, sasl: ListenerSasl) -> Callable[[], ServerExchange]:
    """:raises ConfigError: if the mechanism is unknown or its settings are missing."""
    _load()
    side = _servers.get(name)
    if side is not None:
        return side(sasl)
    supported = ", ".join(_servers)
    if name == "GSSAPI":
        raise ConfigError(
            f"listener {sasl.listener}: GSSAPI (Kerberos) is not supported, and it is Kafka's default; set "
            f"sasl.enabled.mechanisms to one or more of {supported}"
        )
    raise ConfigError(f"listener {sasl.listener}: SASL mechanism {name} is not supported; use {supported}")


def login_of(settings: Mapping[str, str]) -> tuple[str, Login]:
    """Return the mechanism in `sasl.mechanism`, and the login. :raises ConfigError: if the settings are wrong."""
    mechanism = settings.get("sasl.mechanism", "GSSAPI")
    _load()
    side = _clients.get(mechanism)
    if side is None:
        hint = " (GSSAPI is the default: set sasl.mechanism)" if mechanism == "GSSAPI" else ""
        raise ConfigError(f"sasl.mechanism={mechanism} is not supported{hint}; use {', '.join(_clients)}")
    return mechanism, side(settings)


def user_and_password(settings: Mapping[str, str]) -> JaasEntry:
    """Return the JAAS line of a mechanism with user and password. :raises ConfigError: if it lacks them."""
    text = settings.get("sasl.jaas.config")
    if text is None:
        mechanism = settings.get("sasl.mechanism")
        raise ConfigError(f"sasl.mechanism={mechanism} needs sasl.jaas.config with username and password")
    entry = parse_jaas(text)
    entry.require("username")
    entry.require("password")
    return entry
