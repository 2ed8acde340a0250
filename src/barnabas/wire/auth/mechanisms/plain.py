"""SASL PLAIN (RFC 4616): name and password in plain text. Only for listeners with TLS, or for a trusted network."""

import hmac
from collections.abc import Callable, Mapping
from typing import Final

from barnabas.wire.auth.exchange import SaslFailed
from barnabas.wire.auth.registry import ListenerSasl, Login, client_side, server_side, user_and_password

MECHANISM: Final = "PLAIN"


class PlainServer:
    """Compares with the passwords in the settings. The error messages are Kafka's."""

    expires_at_ms: int | None = None
    by_delegation_token = False

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self.user: str | None = None

    def evaluate(self, token: bytes) -> bytes:
        parts = token.decode("utf-8", "replace").split("\0", 3)
        if len(parts) != 3:
            raise SaslFailed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, user, password = parts
        if not user:
            raise SaslFailed("Authentication failed: username not specified")
        if not password:
            raise SaslFailed("Authentication failed: password not specified")
        expected = self._passwords.get(user)
        # Compare even for an unknown user, so that both cases take the same time.
        matches = hmac.compare_digest((expected or "").encode(), password.encode())
        if expected is None or not matches:
            raise SaslFailed("Authentication failed: Invalid username or password")
        if authorization_id and authorization_id != user:
            raise SaslFailed(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.user = user
        return b""


class PlainClient:
    def __init__(self, user: str, password: str) -> None:
        self._token = f"\0{user}\0{password}".encode()
        self.is_complete = False

    def first(self) -> bytes:
        return self._token

    def respond(self, challenge: bytes) -> bytes | None:
        self.is_complete = True
        return None


@server_side(MECHANISM)
def _server(sasl: ListenerSasl) -> Callable[[], PlainServer]:
    passwords = sasl.jaas().users
    return lambda: PlainServer(passwords)


@client_side(MECHANISM)
def _client(settings: Mapping[str, str]) -> Login:
    entry = user_and_password(settings)
    return Login(lambda: PlainClient(entry.require("username"), entry.require("password")))
