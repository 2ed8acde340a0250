"""The SASL mechanisms that a listener offers, from its settings. Settings that cannot work stop the broker at its start."""

from collections.abc import Callable
from dataclasses import dataclass

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.definition import Password, Value
from barnabas.base.config.listeners import Listener
from barnabas.base.errors import ConfigError
from barnabas.broker.security.credentials import ScramCredentials
from barnabas.broker.security.tokens import DelegationTokens
from barnabas.client.key_sets import KeySets
from barnabas.wire.auth.jaas import JaasEntry, parse_jaas
from barnabas.wire.auth.jwt import Jwt
from barnabas.wire.auth.machine import Mechanism
from barnabas.wire.auth.mechanisms.scram import ScramCredential, ScramMechanism, TokenCredential
from barnabas.wire.auth.registry import KeySetSettings, server_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslParts:
    """The credentials against which mechanisms check."""

    scram: ScramCredentials
    tokens: DelegationTokens
    key_sets: KeySets
    #: The wall clock.
    now_ms: Callable[[], int]


def mechanisms_of(config: BrokerConfig, listener: Listener, parts: SaslParts) -> dict[str, Mechanism]:
    """Return a listener's mechanisms. :raises ConfigError: for one that is not supported, or lacks its settings."""
    names = config.for_listener(listener.name, "sasl.enabled.mechanisms")
    assert isinstance(names, tuple)
    offered = {name: _mechanism(_Sasl(config, listener, name, parts)) for name in names}
    if not offered:
        raise ConfigError(f"listener {listener.name} uses SASL, but sasl.enabled.mechanisms is empty: name a mechanism")
    return offered


def _mechanism(sasl: "_Sasl") -> Mechanism:
    reauth_ms = sasl.setting("connections.max.reauth.ms")
    assert isinstance(reauth_ms, int)
    return Mechanism(server_of(sasl.mechanism, sasl), reauth_ms)


class _Sasl:
    """One mechanism on one listener: a `ListenerSasl`."""

    def __init__(self, config: BrokerConfig, listener: Listener, mechanism: str, parts: SaslParts) -> None:
        self._config = config
        self._listener = listener
        self.mechanism = mechanism
        self._parts = parts

    @property
    def listener(self) -> str:
        return self._listener.name

    def setting(self, name: str) -> Value:
        return self._config.for_listener(self._listener.name, name, self.mechanism)

    def jaas(self) -> JaasEntry:
        text = self.setting("sasl.jaas.config")
        if not isinstance(text, Password):
            raise ConfigError(
                f"{self.mechanism} on listener {self.listener} needs "
                f"{self._listener.config_prefix}{self.mechanism.lower()}.sasl.jaas.config"
            )
        return parse_jaas(text.value)

    def now_ms(self) -> int:
        return self._parts.now_ms()

    def scram_credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return self._parts.scram.get(mechanism, user)

    def delegation_token(self, mechanism: ScramMechanism, token_id: str) -> TokenCredential | None:
        return self._parts.tokens.credential(mechanism, token_id, now_ms=self._parts.now_ms())

    def key_set(self, settings: KeySetSettings) -> Callable[[Jwt], None]:
        return self._parts.key_sets.of(settings).verify
