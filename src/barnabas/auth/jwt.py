"""JSON Web Tokens (RFC 7515, 7517, 7519) as OAUTHBEARER carries them: taken apart, and checked against a key set. Pure.

Only asymmetric signatures are known: a key set is public, so a symmetric one would prove nothing, and `none` is never a
signature. Checking signatures needs the package cryptography.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from barnabas.auth.stores import needs_cryptography
from barnabas.core.errors import BarnabasError, ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.hashes import HashAlgorithm

    #: (what is signed, signature); raises `InvalidToken`.
    Verifier = Callable[[bytes, bytes], None]

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]

#: Longer than any provider's; a frame before authentication is bounded besides.
TOKEN_CHARACTERS_MAX: Final = 64 * 1024
_KEYS_MAX: Final = 1_000
_RSA_BITS_MIN: Final = 2048
_CURVES: Final = {"P-256": ("ES256", 32), "P-384": ("ES384", 48), "P-521": ("ES512", 66)}
_RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")


class InvalidToken(BarnabasError):
    """Why, in words for the broker's own log; the peer is told that it is invalid and no more."""


class UnknownKey(InvalidToken):
    """The key set has no key of that id: it may be too old."""


@dataclass(frozen=True, slots=True, repr=False)
class Jwt:
    """A bearer's secret, so it does not show itself."""

    header: Mapping[str, Json]
    claims: Mapping[str, Json]
    signed: bytes
    signature: bytes


def parse_jwt(text: str) -> Jwt:
    """Takes it apart; nothing is checked but the form."""
    if len(text) > TOKEN_CHARACTERS_MAX:
        raise InvalidToken(f"the token is longer than {TOKEN_CHARACTERS_MAX} characters")
    parts = text.split(".")
    if len(parts) != 3:
        raise InvalidToken(f"a token has three parts, this one has {len(parts)}")
    header, claims = (_object(part) for part in parts[:2])
    return Jwt(header, claims, f"{parts[0]}.{parts[1]}".encode(), _decoded(parts[2]))


def encode_unsecured(claims: Mapping[str, Json]) -> str:
    """A token that is not signed: for tests and trusted networks."""
    header = _encoded(json.dumps({"alg": "none"}).encode())
    return f"{header}.{_encoded(json.dumps(dict(claims)).encode())}."


def _object(part: str) -> Mapping[str, Json]:
    try:
        value = json.loads(_decoded(part))
    except (ValueError, RecursionError):
        raise InvalidToken("a part of the token is no JSON") from None
    if not isinstance(value, dict):
        raise InvalidToken("a part of the token is no JSON object")
    return cast(Mapping[str, Json], value)


def _decoded(part: str) -> bytes:
    try:
        return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidToken("a part of the token is no base64url") from None


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


# -- key sets ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Key:
    id: str | None
    #: Algorithms that it may be used with, and how.
    verifiers: "Mapping[str, Verifier]"


class KeySet:
    """The keys of a JWKS document that can check signatures; others are passed over."""

    def __init__(self, document: str | bytes) -> None:
        """:raises ConfigError: where it is no key set, or has no usable key."""
        try:
            keys = json.loads(document)["keys"]
            if not isinstance(keys, list):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError('the key set is no JSON object with a list "keys"') from None
        found = [_key(each) for each in keys[:_KEYS_MAX] if isinstance(each, dict) and each.get("use", "sig") == "sig"]
        self._keys = [each for each in found if each is not None]
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
            raise InvalidToken("the token has critical extensions, of which none is known here")
        named = [each for each in self._keys if key_id is None or each.id == key_id]
        if not named:
            raise UnknownKey("the token is signed with a key that the key set does not have")
        usable = [each.verifiers[algorithm] for each in named if algorithm in each.verifiers]
        if not usable:
            raise InvalidToken("the key set has no key for the token's algorithm")
        if len(usable) > 1 and key_id is None:
            raise InvalidToken("the token does not say which of several keys signed it")
        usable[0](token.signed, token.signature)


def _key(document: Mapping[str, Json]) -> _Key | None:
    try:
        verifiers = _verifiers(document)
    except (InvalidToken, KeyError, TypeError, ValueError):
        return None
    only = document.get("alg")
    if isinstance(only, str):
        verifiers = {name: each for name, each in verifiers.items() if name == only}
    key_id = document.get("kid")
    return _Key(key_id if isinstance(key_id, str) else None, verifiers) if verifiers else None


def _verifiers(document: Mapping[str, Json]) -> "Mapping[str, Verifier]":
    kind = document.get("kty")
    if kind == "RSA":
        return _rsa(_number(document, "n"), _number(document, "e"))
    if kind == "EC" and document.get("crv") in _CURVES:
        return _elliptic(str(document["crv"]), _number(document, "x"), _number(document, "y"))
    if kind == "OKP" and document.get("crv") == "Ed25519":
        return _edwards(_decoded(str(document["x"])))
    return {}


def _number(document: Mapping[str, Json], name: str) -> int:
    return int.from_bytes(_decoded(str(document[name])), "big")


def _hash_of(algorithm: str) -> "HashAlgorithm":
    from cryptography.hazmat.primitives import hashes

    return {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}[algorithm[2:]]


def _rsa(modulus: int, exponent: int) -> "Mapping[str, Verifier]":
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import padding, rsa
    except ImportError:
        raise needs_cryptography("OAUTHBEARER with a key set") from None
    key = rsa.RSAPublicNumbers(exponent, modulus).public_key()
    if key.key_size < _RSA_BITS_MIN:
        return {}

    def verifier(algorithm: str) -> "Verifier":
        digest = _hash_of(algorithm)

        def verify(signed: bytes, signature: bytes) -> None:
            scheme = (
                padding.PSS(padding.MGF1(digest), digest.digest_size)
                if algorithm.startswith("PS")
                else padding.PKCS1v15()
            )
            try:
                key.verify(signature, signed, scheme, digest)
            except InvalidSignature:
                raise InvalidToken("the token's signature does not match") from None

        return verify

    return {algorithm: verifier(algorithm) for algorithm in _RSA_ALGORITHMS}


def _elliptic(curve: str, x: int, y: int) -> "Mapping[str, Verifier]":
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    except ImportError:
        raise needs_cryptography("OAUTHBEARER with a key set") from None
    algorithm, size = _CURVES[curve]
    curves = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}
    key = ec.EllipticCurvePublicNumbers(x, y, curves[curve]).public_key()

    def verify(signed: bytes, signature: bytes) -> None:
        if len(signature) != 2 * size:
            raise InvalidToken("the token's signature has a wrong length")
        r, s = int.from_bytes(signature[:size], "big"), int.from_bytes(signature[size:], "big")
        try:
            key.verify(encode_dss_signature(r, s), signed, ec.ECDSA(_hash_of(algorithm)))
        except InvalidSignature:
            raise InvalidToken("the token's signature does not match") from None

    return {algorithm: verify}


def _edwards(public: bytes) -> "Mapping[str, Verifier]":
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise needs_cryptography("OAUTHBEARER with a key set") from None
    key = Ed25519PublicKey.from_public_bytes(public)

    def verify(signed: bytes, signature: bytes) -> None:
        try:
            key.verify(signature, signed)
        except InvalidSignature:
            raise InvalidToken("the token's signature does not match") from None

    return {"EdDSA": verify}
