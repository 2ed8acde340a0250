"""Ways to forge a token for OAUTHBEARER, each of which has worked against some server. All of them fail here."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from barnabas.base.errors import ConfigError
from barnabas.wire.auth.jwt import InvalidToken, KeySet
from barnabas.wire.auth.mechanisms.oauthbearer import TokenRules, Validator, signed_validator
from tests.oauth_provider import AUDIENCE, ISSUER, SigningKey, b64

RSA, ECDSA, STRANGER = SigningKey("rsa", "RS256"), SigningKey("ec", "ES256"), SigningKey("rsa", "RS256")
RULES = TokenRules(audiences=(AUDIENCE,), issuer=ISSUER)


def document(*jwks: dict[str, Any]) -> str:
    return json.dumps({"keys": list(jwks)})


def validator(*jwks: dict[str, Any]) -> Validator:
    return signed_validator(KeySet(document(*jwks)).verify, RULES, lambda: int(time.time() * 1000))


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    return {"iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 60, "sub": "admin", **changes}


def part(value: Any) -> str:
    return b64(json.dumps(value).encode())


def token(header: dict[str, Any], signature: str = "", said: Any = None) -> str:
    return f"{part(header)}.{part(claims() if said is None else said)}.{signature}"


def with_shared_secret(secret: bytes, algorithm: str = "HS256", **header: Any) -> str:
    """Use the public key as a shared secret; everyone has it."""
    digest = {"HS256": hashlib.sha256, "HS384": hashlib.sha384, "HS512": hashlib.sha512}[algorithm]
    unsigned = token({"alg": algorithm, "kid": "rsa", **header}).rstrip(".")
    return f"{unsigned}.{b64(hmac.digest(secret, unsigned.encode(), digest))}"


def public_pem() -> bytes:
    numbers = rsa.RSAPublicNumbers(*(int.from_bytes(unb64(RSA.jwk[name]), "big") for name in ("e", "n")))
    return numbers.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def changed(
    good: str, *, header: dict[str, Any] | None = None, signature: Callable[[bytes], bytes] | None = None
) -> str:
    first, second, third = good.split(".")
    if header is not None:
        first = part({**json.loads(unb64(first)), **header})
    if signature is not None:
        third = b64(signature(unb64(third)))
    return f"{first}.{second}.{third}"


def other_claims(good: str) -> str:
    first, _, third = good.split(".")
    return f"{first}.{part(claims(sub='root'))}.{third}"


def as_der(signature: bytes) -> bytes:
    half = len(signature) // 2
    return encode_dss_signature(int.from_bytes(signature[:half], "big"), int.from_bytes(signature[half:], "big"))


FORGED: dict[str, Callable[[], str]] = {
    "not signed": lambda: token({"alg": "none"}),
    "not signed, None": lambda: token({"alg": "None"}),
    "not signed, NONE": lambda: token({"alg": "NONE"}),
    "not signed, with the id of a key": lambda: token({"alg": "none", "kid": "rsa"}),
    "alg none over a real signature": lambda: changed(RSA.token(), header={"alg": "none"}),
    "no algorithm": lambda: token({"kid": "rsa"}, b64(b"x" * 256)),
    "algorithm null": lambda: token({"alg": None, "kid": "rsa"}, b64(b"x" * 256)),
    "algorithm a number": lambda: token({"alg": 256, "kid": "rsa"}, b64(b"x" * 256)),
    "algorithm a list": lambda: token({"alg": ["RS256"], "kid": "rsa"}, b64(b"x" * 256)),
    "algorithm unknown": lambda: changed(RSA.token(), header={"alg": "RS1"}),
    "public key in PEM as HS256's secret": lambda: with_shared_secret(public_pem()),
    "public key in PEM as HS384's secret": lambda: with_shared_secret(public_pem(), "HS384"),
    "public key in PEM as HS512's secret": lambda: with_shared_secret(public_pem(), "HS512"),
    "modulus as HS256's secret": lambda: with_shared_secret(unb64(RSA.jwk["n"])),
    "key set as HS256's secret": lambda: with_shared_secret(document(RSA.jwk, ECDSA.jwk).encode()),
    "empty secret": lambda: with_shared_secret(b""),
    "RS256's signature called RS512": lambda: changed(RSA.token(), header={"alg": "RS512"}),
    "RS256's signature called PS256": lambda: changed(RSA.token(), header={"alg": "PS256"}),
    "RS256's signature called ES256": lambda: changed(RSA.token(), header={"alg": "ES256"}),
    "ES256's signature with the RSA key's id": lambda: ECDSA.token(header={"kid": "rsa"}),
    "key of a stranger under a known id": lambda: STRANGER.token(),
    "key id unknown": lambda: RSA.token(header={"kid": "nobody"}),
    "key id a path": lambda: RSA.token(header={"kid": "../../dev/null"}),
    "key id a number": lambda: RSA.token(header={"kid": 7}),
    "key id a list": lambda: RSA.token(header={"kid": ["rsa"]}),
    "stranger's key in the header": lambda: STRANGER.token(header={"jwk": STRANGER.jwk}),
    "stranger's key set in the header": lambda: STRANGER.token(header={"jku": "http://127.0.0.1:1/jwks"}),
    "stranger's certificate in the header": lambda: STRANGER.token(header={"x5u": "http://127.0.0.1:1/x", "x5c": ["AA=="]}),
    "critical extension": lambda: RSA.token(header={"crit": ["exp"]}),
    "critical extension b64": lambda: RSA.token(header={"crit": ["b64"], "b64": False}),
    "payload not encoded": lambda: RSA.token(header={"b64": False}),
    "other claims under the signature": lambda: other_claims(RSA.token()),
    "another header under the signature": lambda: changed(RSA.token(), header={"typ": "at+jwt"}),
    "signature left out": lambda: changed(RSA.token(), signature=lambda _: b""),
    "signature cut": lambda: changed(RSA.token(), signature=lambda signature: signature[:-1]),
    "signature longer": lambda: changed(RSA.token(), signature=lambda signature: signature + b"\0"),
    "signature of zeroes": lambda: changed(ECDSA.token(), signature=lambda signature: bytes(len(signature))),
    "signature in DER": lambda: changed(ECDSA.token(), signature=as_der),
    "ECDSA signature with leading zeroes": lambda: changed(
        ECDSA.token(), signature=lambda signature: b"\0" + signature[:32] + b"\0" + signature[32:]
    ),
    "characters that are no base64 in the signature": lambda: RSA.token() + "!",
    "blanks around it": lambda: f" {RSA.token()}\n",
    "base64 of the other alphabet": lambda: RSA.token().replace("_", "/").replace("-", "+") + "+",
    "two parts": lambda: RSA.token().rpartition(".")[0],
    "four parts": lambda: RSA.token() + ".",
    "five parts, as if encrypted": lambda: f"{part({'alg': 'RSA-OAEP', 'enc': 'A256GCM'})}.AA.AA.AA.AA",
    "claims a list": lambda: token({"alg": "none"}, said=[claims()]),
    "header a list": lambda: f"{part([{'alg': 'none'}])}.{part(claims())}.",
}  # fmt: skip


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_forged_token_is_refused(forge: Callable[[], str]) -> None:
    validate = validator(RSA.jwk, ECDSA.jwk)
    assert validate(RSA.token()).principal == "alice"
    assert validate(ECDSA.token()).principal == "alice"
    with pytest.raises(InvalidToken):
        validate(forge())


def weak_rsa() -> dict[str, Any]:
    public = rsa.generate_private_key(public_exponent=65537, key_size=1024).public_key().public_numbers()
    return {"kty": "RSA", "kid": "weak", "n": b64(public.n.to_bytes(128, "big")), "e": "AQAB"}


def other_curve() -> dict[str, Any]:
    numbers = ec.generate_private_key(ec.SECP256K1()).public_key().public_numbers()
    x, y = (b64(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
    return {"kty": "EC", "crv": "secp256k1", "kid": "k1", "x": x, "y": y}


@pytest.mark.parametrize(
    "jwk",
    [
        {"kty": "oct", "kid": "rsa", "k": b64(b"a secret that everybody knows...")},
        {"kty": "oct", "kid": "rsa", "alg": "HS256", "k": b64(b"a secret that everybody knows...")},
        {**RSA.jwk, "use": "enc"},
        {**RSA.jwk, "alg": "HS256"},
        {**RSA.jwk, "alg": "none"},
        {**RSA.jwk, "kty": "oct"},
        {**RSA.jwk, "kty": ["RSA"]},
        weak_rsa(),
        other_curve(),
    ],
)
def test_key_that_must_not_verify_signatures_is_not_used(jwk: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        KeySet(document(jwk))
    validate = validator(ECDSA.jwk, jwk)
    for forged in (with_shared_secret(b"a secret that everybody knows..."), RSA.token()):
        with pytest.raises(InvalidToken):
            validate(forged)
    assert len(KeySet(document(ECDSA.jwk, jwk))) == 1
