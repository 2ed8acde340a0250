"""An OAuth provider for tests: keys, tokens, and an endpoint that issues them."""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

ISSUER, AUDIENCE = "https://issuer.example", "kafka"


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int, size: int | None = None) -> str:
    return b64(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


class SigningKey:
    """A private key that signs, and its public half as a JWK."""

    def __init__(self, key_id: str, algorithm: str = "RS256") -> None:
        self.id, self.algorithm = key_id, algorithm
        self.jwk: dict[str, str] = {"kid": key_id, "use": "sig"}
        self._sign = self._make()

    def _make(self) -> Callable[[bytes], bytes]:
        digest = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}.get(self.algorithm[2:])
        if self.algorithm == "EdDSA":
            edwards = ed25519.Ed25519PrivateKey.generate()
            self.jwk |= {"kty": "OKP", "crv": "Ed25519", "x": b64(edwards.public_key().public_bytes_raw())}
            return edwards.sign
        assert digest is not None
        if self.algorithm.startswith("ES"):
            curve, name, size = {
                "ES256": (ec.SECP256R1(), "P-256", 32),
                "ES384": (ec.SECP384R1(), "P-384", 48),
                "ES512": (ec.SECP521R1(), "P-521", 66),
            }[self.algorithm]
            elliptic = ec.generate_private_key(curve)
            numbers = elliptic.public_key().public_numbers()
            self.jwk |= {"kty": "EC", "crv": name, "x": _number(numbers.x, size), "y": _number(numbers.y, size)}

            def sign(data: bytes) -> bytes:
                r, s = decode_dss_signature(elliptic.sign(data, ec.ECDSA(digest)))
                return r.to_bytes(size, "big") + s.to_bytes(size, "big")

            return sign
        prime = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = prime.public_key().public_numbers()
        self.jwk |= {"kty": "RSA", "n": _number(public.n), "e": _number(public.e)}
        scheme = (
            padding.PKCS1v15() if self.algorithm[0] == "R" else padding.PSS(padding.MGF1(digest), digest.digest_size)
        )
        return lambda data: prime.sign(data, scheme, digest)

    def token(self, *, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """Return a token that is valid for a minute unless the claims say otherwise; None omits a claim or a header field."""
        now = int(time.time())
        said = {"iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 60, "sub": "alice", **claims}
        parts = [
            b64(json.dumps({name: value for name, value in part.items() if value is not None}).encode())
            for part in (
                {"alg": self.algorithm, "kid": self.id, **(header or {})},
                said,
            )
        ]
        signed = ".".join(parts)
        return f"{signed}.{b64(self._sign(signed.encode()))}"


def key_set(*keys: SigningKey) -> str:
    return json.dumps({"keys": [key.jwk for key in keys]})


class Provider:
    """An HTTP server: `/jwks` has the key set, `/token` issues a token to clients with the secret, `/broken` fails."""

    def __init__(self, *keys: SigningKey) -> None:
        self.keys = list(keys)
        self.requests: list[tuple[str, str, str]] = []  #: path, Authorization, body
        self.url = ""

    def answer(self, path: str, authorization: str, body: str) -> tuple[int, str]:
        self.requests.append((path, authorization, body))
        if path == "/jwks":
            return 200, key_set(*self.keys)
        if path == "/token":
            name, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
            if secret != f"{name}-secret":
                return 401, json.dumps({"error": "invalid_client"})
            return 200, json.dumps({"access_token": self.keys[-1].token(sub=name), "token_type": "Bearer"})
        return 503, "{}"


@contextmanager
def serving(provider: Provider) -> Iterator[Provider]:
    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            status, text = provider.answer(self.path, self.headers.get("Authorization", ""), body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = _respond  # noqa: N815 - the names that http.server calls

        def log_message(self, format: str, *args: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
