"""SASL OAUTHBEARER (RFC 7628) as Kafka speaks it: the messages, the rules for a token, both sides of the exchange."""

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.base.config.definition import Value
from barnabas.base.errors import ConfigError
from barnabas.wire.auth.exchange import SaslFailed
from barnabas.wire.auth.jwt import InvalidToken, Json, Jwt, parse_jwt
from barnabas.wire.auth.registry import KeySetSettings, ListenerSasl, server_side

log = logging.getLogger(__name__)

MECHANISM: Final = "OAUTHBEARER"
_UNSECURED: Final = "unsecuredValidator"
OAUTH_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"

#: Floats represent integers up to this exactly.
_TIME_S_MAX: Final = 2.0**53
_SEPARATOR: Final = "\x01"
_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_KEY: Final = r"[A-Za-z]+"
_VALUE: Final = r"[\x21-\x7E \t\r\n]+"
_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authzid>{_NAME}))?,{_SEPARATOR}(?P<pairs>(?:{_KEY}={_VALUE}{_SEPARATOR})*){_SEPARATOR}"
)
_AUTH: Final = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")
_EXTENSION_KEY: Final = re.compile(_KEY)
_EXTENSION_VALUE: Final = re.compile(_VALUE)


@dataclass(frozen=True, slots=True)
class BearerToken:
    """The claims of a valid token."""

    principal: str
    expires_at_ms: int
    scope: frozenset[str]


class InsufficientScope(InvalidToken):
    """The token is valid but does not grant the required scope."""

    def __init__(self, scope: str) -> None:
        super().__init__(f"the token lacks the scope {scope}")
        self.scope = scope


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """The requirements for a token's claims."""

    scope_claim: str = "scope"
    principal_claim: str = "sub"
    clock_skew_ms: int = 30_000
    audiences: Sequence[str] = ()
    issuer: str | None = None
    required_scope: Sequence[str] = ()
    needs_issued_at: bool = True

    def check(self, claims: Mapping[str, Json], *, now_ms: int) -> BearerToken:
        """:raises InvalidToken: with the reason, for the log."""
        expires_ms = _time_ms(claims, "exp")
        if expires_ms is None:
            raise InvalidToken("the token has no end (claim exp)")
        if now_ms - self.clock_skew_ms >= expires_ms:
            raise InvalidToken("the token has expired")
        issued_ms = _time_ms(claims, "iat")
        if issued_ms is None and self.needs_issued_at:
            raise InvalidToken("the token does not say when it was issued (claim iat)")
        if issued_ms is not None and not self.needs_issued_at:
            if issued_ms > now_ms + self.clock_skew_ms:
                raise InvalidToken("the token was issued in the future")
            if expires_ms <= issued_ms:
                raise InvalidToken("the token ends before it was issued")
        not_before_ms = _time_ms(claims, "nbf")
        if not_before_ms is not None and now_ms + self.clock_skew_ms < not_before_ms:
            raise InvalidToken("the token is not valid yet")
        self._check_parties(claims)
        principal = claims.get(self.principal_claim)
        if not isinstance(principal, str) or not principal.strip():
            raise InvalidToken(f"the token names no user (claim {self.principal_claim})")
        return BearerToken(principal.strip(), expires_ms, self._scope(claims))

    def _check_parties(self, claims: Mapping[str, Json]) -> None:
        if self.issuer is not None and claims.get("iss") != self.issuer:
            raise InvalidToken("the token is of another issuer than sasl.oauthbearer.expected.issuer")
        audience = claims.get("aud")
        named = audience if isinstance(audience, list) else [audience]
        if self.audiences and not any(each in self.audiences for each in named):
            raise InvalidToken("the token is for another audience than sasl.oauthbearer.expected.audience")

    def _scope(self, claims: Mapping[str, Json]) -> frozenset[str]:
        raw = claims.get(self.scope_claim)
        words = raw.split() if isinstance(raw, str) else raw if isinstance(raw, list) else []
        scope = frozenset(str(word).strip() for word in words)
        for required in self.required_scope:
            if required not in scope:
                raise InsufficientScope(required)
        return scope


def _time_ms(claims: Mapping[str, Json], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    # Refuse times that cannot be counted in milliseconds: 1e308 is a number, too.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _TIME_S_MAX:
        raise InvalidToken(f"the token's claim {name} is not a time")
    return int(value * 1000)


#: Validates a token, or raises `InvalidToken`.
Validator = Callable[[str], BearerToken]


def signed_validator(verify: Callable[[Jwt], None], rules: TokenRules, now_ms: Callable[[], int]) -> Validator:
    """`verify` raises `InvalidToken` unless the signature is good."""

    def validate(text: str) -> BearerToken:
        token = parse_jwt(text)
        verify(token)
        return rules.check(token.claims, now_ms=now_ms())

    return validate


def unsecured_validator(options: Mapping[str, str], now_ms: Callable[[], int]) -> Validator:
    """Use the JAAS options `unsecuredValidator…`, as Kafka does. Tokens are not signed, so a client can claim to be any
    user."""
    skew = options.get("unsecuredValidatorAllowableClockSkewMs", "").strip() or "0"
    if not skew.isdigit():
        raise ConfigError("sasl.jaas.config: unsecuredValidatorAllowableClockSkewMs is a number of milliseconds")
    rules = TokenRules(
        principal_claim=options.get("unsecuredValidatorPrincipalClaimName", "").strip() or "sub",
        scope_claim=options.get("unsecuredValidatorScopeClaimName", "").strip() or "scope",
        required_scope=options.get("unsecuredValidatorRequiredScope", "").split(),
        clock_skew_ms=int(skew),
        needs_issued_at=False,
    )

    def validate(text: str) -> BearerToken:
        token = parse_jwt(text)
        if token.header.get("alg") != "none" or token.is_signed:
            raise InvalidToken(
                "the token is signed, but the listener takes unsecured tokens and cannot verify a signature"
            )
        return rules.check(token.claims, now_ms=now_ms())

    return validate


class OAuthServer:
    """Owner: one connection. Receives one token and, after a refusal, the client's byte that confirms the refusal."""

    by_delegation_token = False

    def __init__(self, validate: Validator) -> None:
        self._validate = validate
        self._refusal: str | None = None
        self.user: str | None = None
        self.expires_at_ms: int | None = None

    def evaluate(self, token: bytes) -> bytes:
        if self._refusal is not None:
            raise SaslFailed(self._refusal)
        authorization_id, text = _parse_first(token)
        try:
            bearer = self._validate(text)
        except InvalidToken as error:
            log.info("a token was refused: %s", error)
            self._refusal = _refusal(error)
            return self._refusal.encode()
        if authorization_id and authorization_id != bearer.principal:
            raise SaslFailed(
                "Authentication failed: Client requested an authorization id that is different from the token's "
                "principal name"
            )
        self.user, self.expires_at_ms = bearer.principal, bearer.expires_at_ms
        return b""


def _refusal(error: InvalidToken) -> str:
    if isinstance(error, InsufficientScope):
        return json.dumps({"status": "insufficient_scope", "scope": error.scope})
    return json.dumps({"status": "invalid_token"})


def _parse_first(message: bytes) -> tuple[str, str]:
    """Return (authorization id, token). The form of extensions is checked; no setting here uses their values."""
    match = _FIRST.fullmatch(message.decode("utf-8", "replace"))
    if match is None:
        raise SaslFailed("Invalid OAUTHBEARER client first message")
    pairs = dict(pair.partition("=")[::2] for pair in match["pairs"].split(_SEPARATOR) if pair)
    auth = pairs.get("auth")
    if auth is None:
        raise SaslFailed("Invalid OAUTHBEARER client first message: 'auth' not specified")
    parsed = _AUTH.fullmatch(auth)
    if parsed is None:
        raise SaslFailed("Invalid OAUTHBEARER client first message: invalid 'auth' format")
    if parsed["scheme"].lower() != "bearer":
        raise SaslFailed("Invalid scheme in OAUTHBEARER client first message")
    name = (match["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
    return name, parsed["token"]


class OAuthClient:
    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        pairs = {"auth": f"Bearer {token}", **extensions}
        body = "".join(f"{name}={value}{_SEPARATOR}" for name, value in pairs.items())
        self._first = f"n,,{_SEPARATOR}{body}{_SEPARATOR}".encode()
        self.is_complete = False

    def first(self) -> bytes:
        return self._first

    def respond(self, challenge: bytes) -> bytes | None:
        if challenge:
            # A refusal. After this byte the server ends the exchange with its own error.
            return _SEPARATOR.encode()
        self.is_complete = True
        return None


def check_extensions(extensions: Mapping[str, str]) -> None:
    """:raises ConfigError: if an extension cannot be encoded."""
    for name, value in extensions.items():
        if name == "auth" or not _EXTENSION_KEY.fullmatch(name):
            raise ConfigError(
                f"sasl.jaas.config: {name} is not a valid name of a SASL extension: use letters, and not auth"
            )
        if not _EXTENSION_VALUE.fullmatch(value):
            raise ConfigError(f"sasl.jaas.config: the SASL extension {name} has a character that is not allowed")


# -- registration: the client side is in `client.oauth_login`, which loads tokens from the web ------------------------


@server_side(MECHANISM)
def _server(sasl: ListenerSasl) -> Callable[[], OAuthServer]:
    validate = _validator(sasl)
    return lambda: OAuthServer(validate)


def _validator(sasl: ListenerSasl) -> Validator:
    """Tokens must be signed with a key of the key set. Unsigned ones are accepted only if the JAAS line says so."""
    setting = sasl.setting
    url = setting("sasl.oauthbearer.jwks.endpoint.url")
    if isinstance(url, str) and url:
        verify = sasl.key_set(
            KeySetSettings(
                url,
                refresh_ms=_whole(setting("sasl.oauthbearer.jwks.endpoint.refresh.ms")),
                backoff_ms=_whole(setting("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms")),
                backoff_max_ms=_whole(setting("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms")),
            )
        )
        audiences = setting("sasl.oauthbearer.expected.audience")
        issuer = setting("sasl.oauthbearer.expected.issuer")
        rules = TokenRules(
            scope_claim=str(setting("sasl.oauthbearer.scope.claim.name")),
            principal_claim=str(setting("sasl.oauthbearer.sub.claim.name")),
            clock_skew_ms=_whole(setting("sasl.oauthbearer.clock.skew.seconds")) * 1000,
            audiences=audiences if isinstance(audiences, tuple) else (),
            issuer=issuer if isinstance(issuer, str) else None,
        )
        return signed_validator(verify, rules, sasl.now_ms)
    options = sasl.jaas().options
    if not any(name.startswith(_UNSECURED) for name in options):
        raise ConfigError(
            f"OAUTHBEARER on listener {sasl.listener} needs sasl.oauthbearer.jwks.endpoint.url; unsigned tokens are "
            f'accepted only where sasl.jaas.config says so, with an option such as {_UNSECURED}AllowableClockSkewMs="0"'
        )
    log.warning(
        "OAUTHBEARER on listener %s accepts unsigned tokens: every client can claim to be any user. Set "
        "sasl.oauthbearer.jwks.endpoint.url outside of tests",
        sasl.listener,
    )
    return unsecured_validator(options, sasl.now_ms)


def _whole(value: Value) -> int:
    assert isinstance(value, int)
    return value
