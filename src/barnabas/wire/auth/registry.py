"""The SASL mechanisms that exist, on both sides. A mechanism registers itself: see the package `mechanisms`.

A side is made once from settings, which it checks, and then begins an exchange for each authentication.
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
    """Where the keys are that sign tokens, and how often they are loaded again."""

    url: str
    refresh_ms: int
    backoff_ms: int
    backoff_max_ms: int
    #: What the operator calls it, in errors and logs.
    setting: str = "sasl.oauthbearer.jwks.endpoint.url"


class ListenerSasl(Protocol):
    """What the server side of a mechanism gets: the settings of its listener, and what the broker knows."""

    @property
    def listener(self) -> str: ...

    def setting(self, name: str) -> Value:
        """The listener's value for this mechanism, or the listener's, or the broker's."""
        ...

    def jaas(self) -> JaasEntry:
        """:raises ConfigError: where `sasl.jaas.config` is not set, or cannot be read."""
        ...

    def now_ms(self) -> int:
        """By the wall clock."""
        ...

    def scram_credential(self, mechanism: "ScramMechanism", user: str) -> "ScramCredential | None": ...
    def delegation_token(self, mechanism: "ScramMechanism", token_id: str) -> "TokenCredential | None": ...

    def key_set(self, settings: KeySetSettings) -> "Callable[[Jwt], None]":
        """What raises `InvalidToken` unless a key of the set has signed the token."""
        ...


class Tokens(Protocol):
    """Where a login's tokens come from. To get one may block: a caller on an event loop gets it on a thread first."""

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
#: Settings of a broker that its own logins at other brokers need, in the order in which mechanisms registered.
_login_settings: Final[dict[str, None]] = {"sasl.jaas.config": None}


def server_side(*names: str) -> Callable[[ServerSide], ServerSide]:
    """Registers how a listener's settings become what begins exchanges."""

    def register(side: ServerSide) -> ServerSide:
        _servers.update(dict.fromkeys(names, side))
        return side

    return register


def client_side(*names: str, settings: tuple[str, ...] = ()) -> Callable[[ClientSide], ClientSide]:
    """Registers how a client's settings become a login. `settings` are those that it reads besides `sasl.jaas.config`."""

    def register(side: ClientSide) -> ClientSide:
        _clients.update(dict.fromkeys(names, side))
        _login_settings.update(dict.fromkeys(settings))
        return side

    return register


def _load() -> None:
    """Imported at the first use, because the mechanisms import this module."""
    import barnabas.wire.auth.mechanisms  # noqa: F401  # each registers itself


def login_settings() -> tuple[str, ...]:
    _load()
    return tuple(_login_settings)


def server_of(name: str, sasl: ListenerSasl) -> Callable[[], ServerExchange]:
    """:raises ConfigError: for an unknown mechanism, or one whose settings are missing."""
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
    """The mechanism that `sasl.mechanism` names, and the login. :raises ConfigError: for settings that cannot work."""
    mechanism = settings.get("sasl.mechanism", "GSSAPI")
    _load()
    side = _clients.get(mechanism)
    if side is None:
        hint = " (GSSAPI is the default: set sasl.mechanism)" if mechanism == "GSSAPI" else ""
        raise ConfigError(f"sasl.mechanism={mechanism} is not supported{hint}; use {', '.join(_clients)}")
    return mechanism, side(settings)


def user_and_password(settings: Mapping[str, str]) -> JaasEntry:
    """The JAAS line of a mechanism with a user and a password. :raises ConfigError: where it lacks them."""
    text = settings.get("sasl.jaas.config")
    if text is None:
        mechanism = settings.get("sasl.mechanism")
        raise ConfigError(f"sasl.mechanism={mechanism} needs sasl.jaas.config with username and password")
    entry = parse_jaas(text)
    entry.require("username")
    entry.require("password")
    return entry
