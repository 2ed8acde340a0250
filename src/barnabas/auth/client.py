"""A client's side of SASL, from its settings: which mechanism, with which credentials."""

import secrets
from collections.abc import Callable, Mapping
from typing import Final

from barnabas.auth import plain, scram
from barnabas.auth.jaas import parse_jaas
from barnabas.auth.mechanism import ClientExchange
from barnabas.core.errors import ConfigError

#: 18 bytes of chance in base64: printable, without a comma.
_NONCE_BYTES: Final = 18


def exchange_factory(settings: Mapping[str, str]) -> tuple[str, Callable[[], ClientExchange]]:
    """(mechanism, what begins an exchange) from `sasl.mechanism` and `sasl.jaas.config`. Checked here, once."""
    mechanism = settings.get("sasl.mechanism", "GSSAPI")
    scram_mechanism = scram.BY_NAME.get(mechanism)
    if mechanism != plain.MECHANISM and scram_mechanism is None:
        hint = " (GSSAPI is the default: set sasl.mechanism)" if mechanism == "GSSAPI" else ""
        raise ConfigError(
            f"sasl.mechanism={mechanism} is not supported{hint}; use PLAIN, {', '.join(scram.BY_NAME)} or OAUTHBEARER"
        )
    text = settings.get("sasl.jaas.config")
    if text is None:
        raise ConfigError(f"sasl.mechanism={mechanism} needs sasl.jaas.config with username and password")
    entry = parse_jaas(text)
    user, password = entry.require("username"), entry.require("password")
    if scram_mechanism is None:
        return mechanism, lambda: plain.PlainClient(user, password)
    # A delegation token: its id is the user, its HMAC the password.
    by_token = entry.options.get("tokenauth", "").lower() == "true"
    return mechanism, lambda: scram.ScramClient(
        scram_mechanism, user, password, nonce=secrets.token_urlsafe(_NONCE_BYTES), delegation_token=by_token
    )
