"""A client that logs in as an unknown user cannot see that the user is unknown."""

import base64

import pytest

from barnabas.wire.auth.exchange import SaslFailed
from barnabas.wire.auth.mechanisms.scram import BY_NAME, ScramClient, ScramCredential, ScramServer

MECHANISM = BY_NAME["SCRAM-SHA-256"]


def server(secret: bytes = b"broker's own") -> ScramServer:
    return ScramServer(MECHANISM, lambda user: None, nonce="own", decoy_secret=secret)


def challenge(user: str, secret: bytes = b"broker's own") -> str:
    return server(secret).evaluate(ScramClient(MECHANISM, user, "x", nonce="c").first()).decode()


def test_unknown_user_gets_the_same_challenge_each_time_and_another_one_another() -> None:
    assert challenge("nobody") == challenge("nobody")
    assert challenge("nobody") != challenge("somebody")
    assert challenge("nobody") != challenge("nobody", b"another broker's")
    assert challenge("nobody").endswith(",i=4096")


def test_no_password_is_right() -> None:
    asked = server()
    client = ScramClient(MECHANISM, "nobody", "guess", nonce="c")
    answer = client.respond(asked.evaluate(client.first()))
    assert answer is not None
    with pytest.raises(SaslFailed, match="invalid credentials"):
        asked.evaluate(answer)
    assert asked.user is None


class OldLibrdkafka(ScramClient):
    """librdkafka before 2.6.1 repeats its own nonce before the server's."""

    def respond(self, token: bytes) -> bytes | None:
        if f"r={self._nonce}" not in token.decode():
            return super().respond(token)
        mechanism = self._mechanism
        fields = dict(field.split("=", 1) for field in token.decode().split(","))
        salted = mechanism.salted_password(self._password, base64.b64decode(fields["s"]), int(fields["i"]))
        final = f"c=biws,r={self._nonce}{fields['r']}"
        signed = f"{self._bare},{token.decode()},{final}".encode()
        key = mechanism.hmac(salted, b"Client Key")
        signature = mechanism.hmac(mechanism.hash(key), signed)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{final},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize(("client_type", "password"), [(ScramClient, "p"), (OldLibrdkafka, "p"), (OldLibrdkafka, "no")])
def test_old_librdkafka_logs_in_with_its_nonce_repeated(client_type: type[ScramClient], password: str) -> None:
    """Debian's kcat could not log in. Kafka accepts a nonce that ends with the server's; the proof covers all of it."""
    salted = MECHANISM.salted_password("p", b"salt", 4096)
    client_key = MECHANISM.hmac(salted, b"Client Key")
    known = ScramCredential(
        salt=b"salt",
        iterations=4096,
        stored_key=MECHANISM.hash(client_key),
        server_key=MECHANISM.hmac(salted, b"Server Key"),
    )
    asked = ScramServer(MECHANISM, lambda user: known, nonce="own", decoy_secret=b"x")
    client = client_type(MECHANISM, "user", password, nonce="c")
    answer = client.respond(asked.evaluate(client.first()))
    assert answer is not None
    if password == "p":
        assert asked.evaluate(answer).startswith(b"v=")
        assert asked.user == "user"
    else:
        with pytest.raises(SaslFailed):
            asked.evaluate(answer)
