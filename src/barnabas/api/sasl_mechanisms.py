"""The SASL mechanisms that a listener offers, from its settings. What cannot work is refused when the broker starts."""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.auth.jaas import JaasEntry, parse_jaas
from barnabas.auth.machine import Mechanism
from barnabas.auth.mechanism import ServerExchange
from barnabas.auth.oauth import MECHANISM as OAUTHBEARER
from barnabas.auth.oauth import OAuthServer, TokenRules, Validator, signed_validator, unsecured_validator
from barnabas.auth.plain import MECHANISM as PLAIN
from barnabas.auth.plain import PlainServer
from barnabas.auth.scram import BY_NAME, ScramMechanism, ScramServer
from barnabas.core.config.broker import BrokerConfig
from barnabas.core.config.definition import Password, Value
from barnabas.core.config.listeners import Listener
from barnabas.core.errors import ConfigError
from barnabas.security.credentials import ScramCredentials
from barnabas.security.key_sets import KeySets, KeySetSettings
from barnabas.security.tokens import DelegationTokens

log = logging.getLogger(__name__)

_SUPPORTED: Final = ", ".join((PLAIN, *BY_NAME, OAUTHBEARER))
_UNSECURED: Final = "unsecuredValidator"


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
    offered = {name: _mechanism(config, listener, name, parts) for name in names}
    if not offered:
        raise ConfigError(f"listener {listener.name} asks for SASL, but sasl.enabled.mechanisms is empty")
    return offered


def _mechanism(config: BrokerConfig, listener: Listener, name: str, parts: SaslParts) -> Mechanism:
    reauth_ms = config.for_listener(listener.name, "connections.max.reauth.ms", name)
    assert isinstance(reauth_ms, int)
    if name == PLAIN:
        passwords: Mapping[str, str] = _jaas(config, listener, name).users
        return Mechanism(lambda: PlainServer(passwords), reauth_ms)
    if name in BY_NAME:
        return Mechanism(_scram(BY_NAME[name], parts), reauth_ms)
    if name == OAUTHBEARER:
        validate = _validator(config, listener, parts)
        return Mechanism(lambda: OAuthServer(validate), reauth_ms)
    if name == "GSSAPI":
        raise ConfigError(
            f"listener {listener.name}: GSSAPI (Kerberos) is not supported, and it is Kafka's default; set "
            f"sasl.enabled.mechanisms to one or more of {_SUPPORTED}"
        )
    raise ConfigError(f"listener {listener.name}: SASL mechanism {name} is not supported; use {_SUPPORTED}")


def _scram(mechanism: ScramMechanism, parts: SaslParts) -> Callable[[], ServerExchange]:
    return lambda: ScramServer(
        mechanism,
        lambda user: parts.scram.get(mechanism, user),
        nonce=secrets.token_urlsafe(24),
        token_of=lambda token_id: parts.tokens.credential(mechanism, token_id, now_ms=parts.now_ms()),
    )


# -- OAUTHBEARER ------------------------------------------------------------------------------------------------------


def _validator(config: BrokerConfig, listener: Listener, parts: SaslParts) -> Validator:
    """Tokens must be signed with a key of the key set. Ones that nobody signed are taken only where the JAAS line says so."""

    def setting(name: str) -> Value:
        return config.for_listener(listener.name, name, OAUTHBEARER)

    url = setting("sasl.oauthbearer.jwks.endpoint.url")
    if isinstance(url, str) and url:
        source = parts.key_sets.of(
            KeySetSettings(
                url,
                refresh_ms=_whole(setting("sasl.oauthbearer.jwks.endpoint.refresh.ms")),
                backoff_ms=_whole(setting("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms")),
                backoff_max_ms=_whole(setting("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms")),
            )
        )
        audiences, issuer = setting("sasl.oauthbearer.expected.audience"), setting("sasl.oauthbearer.expected.issuer")
        rules = TokenRules(
            scope_claim=str(setting("sasl.oauthbearer.scope.claim.name")),
            principal_claim=str(setting("sasl.oauthbearer.sub.claim.name")),
            clock_skew_ms=_whole(setting("sasl.oauthbearer.clock.skew.seconds")) * 1000,
            audiences=audiences if isinstance(audiences, tuple) else (),
            issuer=issuer if isinstance(issuer, str) else None,
        )
        return signed_validator(source.verify, rules, parts.now_ms)
    options = _jaas(config, listener, OAUTHBEARER).options
    if not any(name.startswith(_UNSECURED) for name in options):
        raise ConfigError(
            f"OAUTHBEARER on listener {listener.name} needs sasl.oauthbearer.jwks.endpoint.url; tokens that nobody signed "
            f'are taken only where sasl.jaas.config says so, with an option such as {_UNSECURED}AllowableClockSkewMs="0"'
        )
    log.warning(
        "OAUTHBEARER on listener %s takes tokens that nobody signed: anybody may say to be anybody. Set "
        "sasl.oauthbearer.jwks.endpoint.url outside of tests",
        listener.name,
    )
    return unsecured_validator(options, parts.now_ms)


def _whole(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _jaas(config: BrokerConfig, listener: Listener, mechanism: str) -> JaasEntry:
    text = config.for_listener(listener.name, "sasl.jaas.config", mechanism)
    if not isinstance(text, Password):
        raise ConfigError(
            f"{mechanism} on listener {listener.name} needs "
            f"{listener.config_prefix}{mechanism.lower()}.sasl.jaas.config"
        )
    return parse_jaas(text.value)
