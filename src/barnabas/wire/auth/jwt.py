"""JSON Web Tokens for OAUTHBEARER, parsed and verified by PyJWT (`pip install barnabas[security]`).

This module makes the decisions that PyJWT leaves to its caller: which keys of a key set are usable, and which key must have
signed a token. Only asymmetric signatures are accepted: a key set is public, so a symmetric signature would prove nothing, and
`none` is no signature.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Final, cast

from barnabas.base.errors import BarnabasError, ConfigError

if TYPE_CHECKING:
    from jwt import PyJWK

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]

#: Longer than the tokens of any provider. The size of a frame before authentication is bounded, too.
TOKEN_CHARACTERS_MAX: Final = 64 * 1024
_KEYS_MAX: Final = 1_000
_RSA_BITS_MIN: Final = 2048
#: Three parts in base64url. PyJWT ignores other characters, so without this check one token would have many texts.
_FORM: Final = re.compile(r"[A-Za-z0-9_-]+={0,2}\.[A-Za-z0-9_-]+={0,2}\.[A-Za-z0-9_-]*={0,2}")
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
#: By key type and curve.
_ALGORITHMS: Final[Mapping[tuple[str, str | None], tuple[str, ...]]] = {
    ("RSA", None): _RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}


class InvalidToken(BarnabasError):
    """The reason is only for the broker's log. The peer just learns that the token is invalid."""


class UnknownKey(InvalidToken):
    """The key set has no key with that id: it may be outdated."""


@cache
def _pyjwt() -> ModuleType:
    try:
        import cryptography  # noqa: F401  # without it PyJWT supports only symmetric signatures
        import jwt
    except ImportError:
        raise ConfigError("signed tokens need PyJWT and cryptography: pip install 'barnabas[security]'") from None
    return jwt


def check_installed() -> None:
    """:raises ConfigError: if the packages for verifying tokens are not installed."""
    _pyjwt()


@dataclass(frozen=True, slots=True, repr=False)
class Jwt:
    """A token. It is secret, so `repr` hides it."""

    header: Mapping[str, Json]
    claims: Mapping[str, Json]
    text: str
    is_signed: bool


def parse_jwt(text: str) -> Jwt:
    """Parse a token; check only its form."""
    if len(text) > TOKEN_CHARACTERS_MAX:
        raise InvalidToken(f"the token is longer than {TOKEN_CHARACTERS_MAX} characters")
    if _FORM.fullmatch(text) is None:
        raise InvalidToken("a token has three parts in base64url")
    jwt = _pyjwt()
    try:
        parts = jwt.PyJWS().decode_complete(text, options={"verify_signature": False})
        claims = json.loads(parts["payload"])
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise InvalidToken("the token cannot be read") from None
    if not isinstance(claims, dict):
        raise InvalidToken("the token's claims are not a JSON object")
    return Jwt(parts["header"], claims, text, is_signed=bool(parts["signature"]))


def encode_unsecured(claims: Mapping[str, Json]) -> str:
    """Return an unsigned token, for tests and trusted networks."""
    return cast(str, _pyjwt().encode(dict(claims), None, algorithm="none"))


class KeySet:
    """The keys of a JWKS document that can verify signatures; others are ignored."""

    def __init__(self, document: str | bytes) -> None:
        """:raises ConfigError: if the document is not a key set, or has no usable key."""
        try:
            keys = json.loads(document)["keys"]
            if not isinstance(keys, list):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError('the key set is not a JSON object with a list "keys"') from None
        #: For each key of the document, the key by algorithm.
        self._keys = [usable for each in keys[:_KEYS_MAX] if (usable := _usable(each))]
        if not self._keys:
            raise ConfigError("the key set has no RSA, EC or Ed25519 key for signatures")

    def __len__(self) -> int:
        return len(self._keys)

    def verify(self, token: Jwt) -> None:
        """:raises InvalidToken: unless one of the keys signed it."""
        algorithm, key_id = token.header.get("alg"), token.header.get("kid")
        if not isinstance(algorithm, str) or algorithm == "none":
            raise InvalidToken("the token is not signed")
        if "crit" in token.header:
            raise InvalidToken("the token has critical extensions, and this broker supports none")
        named = [each for each in self._keys if key_id is None or _id_of(each) == key_id]
        if not named:
            raise UnknownKey("the token is signed with a key that the key set does not have")
        usable = [each[algorithm] for each in named if algorithm in each]
        if not usable:
            raise InvalidToken("the key set has no key for the token's algorithm")
        if len(usable) > 1 and key_id is None:
            raise InvalidToken("the token does not say which of several keys signed it")
        jwt = _pyjwt()
        try:
            jwt.PyJWS().decode_complete(token.text, usable[0], algorithms=[algorithm])
        except jwt.PyJWTError:
            raise InvalidToken("the token's signature does not match") from None


def _id_of(key: Mapping[str, "PyJWK"]) -> str | None:
    return next(iter(key.values())).key_id


def _usable(document: Json) -> "dict[str, PyJWK]":
    """Return the key by algorithm, for the algorithms that it may be used with; empty if it cannot verify signatures."""
    if not isinstance(document, dict) or document.get("use", "sig") != "sig":
        return {}
    kind, curve, only = document.get("kty"), document.get("crv"), document.get("alg")
    if not isinstance(kind, str) or not isinstance(curve, str | None):
        return {}
    # Key sets are public, so only the public part of a key is used.
    public = {name: value for name, value in document.items() if name in ("kty", "crv", "kid", "n", "e", "x", "y")}
    jwt = _pyjwt()
    found: dict[str, PyJWK] = {}
    for algorithm in _ALGORITHMS.get((kind, curve), ()):
        if isinstance(only, str) and algorithm != only:
            continue
        try:
            key = jwt.PyJWK(public, algorithm)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            return {}
        if kind == "RSA" and key.key.key_size < _RSA_BITS_MIN:
            return {}
        found[algorithm] = key
    return found
