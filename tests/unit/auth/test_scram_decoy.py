"""Who asks for a user that does not exist is not told so."""

import pytest

from barnabas.auth.exchange import SaslFailed
from barnabas.auth.mechanisms.scram import BY_NAME, ScramClient, ScramServer

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
