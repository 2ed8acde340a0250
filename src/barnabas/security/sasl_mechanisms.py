"""The SASL mechanisms that a listener offers, from its settings. Settings that cannot work stop the broker at its start."""

from collections.abc import Callable
from dataclasses import dataclass

from barnabas.auth.jaas import JaasEntry, parse_jaas
from barnabas.auth.jwt import Jwt
from barnabas.auth.machine import Mechanism
from barnabas.auth.mechanisms.scram import ScramCredential, ScramMechanism, TokenCredential
from barnabas.auth.registry import KeySetSettings, server_of
from barnabas.client.key_sets import KeySets
from barnabas.core.config.broker import BrokerConfig
from barnabas.core.config.definition import Password, Value
from barnabas.core.config.listeners import Listener
from barnabas.core.errors import ConfigError
from barnabas.security.credentials import ScramCredentials
from barnabas.security.tokens import DelegationTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslParts:
    """What mechanisms check against."""

    scram: ScramCredentials
    tokens: DelegationTokens
    key_sets: KeySets
    #: The wall clock.
    now_ms: Callable[[], int]


def mechanisms_of(config: BrokerConfig, listener: Listener, parts: SaslParts) -> dict[str, Mechanism]:
    """What a listener offers. :raises ConfigError: for a mechanism that is not served, or lacks its settings."""
    names = config.for_listener(listener.name, "sasl.enabled.mechanisms")
    assert isinstance(names, tuple)
    offered = {name: _mechanism(_Sasl(config, listener, name, parts)) for name in names}
    if not offered:
        raise ConfigError(f"listener {listener.name} asks for SASL, but sasl.enabled.mechanisms is empty")
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
