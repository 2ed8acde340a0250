"""PLAIN and SCRAM: server and client against each other and against the RFCs' own examples."""

import pytest

from barnabas.base.errors import ConfigError
from barnabas.wire.auth.exchange import SaslFailed
from barnabas.wire.auth.mechanisms.plain import PlainClient, PlainServer
from barnabas.wire.auth.mechanisms.scram import ScramClient, ScramCredential, ScramMechanism, ScramServer
from barnabas.wire.auth.registry import Login, login_of

USERS = {"alice": "secret", "bob": "pä,=ss"}
SALT = b"0123456789abcdef"


# -- PLAIN ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", USERS)
def test_right_password_identifies_the_user(user: str) -> None:
    server = PlainServer(USERS)
    client = PlainClient(user, USERS[user])
    answer = server.evaluate(client.first())
    assert server.user == user
    assert client.respond(answer) is None and client.is_complete


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (b"\0alice\0wrong", "Invalid username or password"),
        (b"\0nobody\0secret", "Invalid username or password"),
        (b"\0alice\0", "password not specified"),
        (b"\0\0secret", "username not specified"),
        (b"bob\0alice\0secret", "authorization id that is different from username"),
        (b"alice secret", "expected 3 tokens, got 1"),
        (b"\0alice\0secret\0more\0", "expected 3 tokens, got 4"),
        (b"", "expected 3 tokens, got 1"),
        (b"\xff\0\xfe\0\xfd", "Invalid username or password"),
    ],
)
def test_plain_refusals_are_in_kafkas_words(token: bytes, words: str) -> None:
    server = PlainServer(USERS)
    with pytest.raises(SaslFailed, match=words):
        server.evaluate(token)
    assert server.user is None


def test_authorization_id_that_is_the_user_is_accepted() -> None:
    server = PlainServer(USERS)
    server.evaluate(b"alice\0alice\0secret")
    assert server.user == "alice"


# -- SCRAM ------------------------------------------------------------------------------------------------------------


def scram_server(
    mechanism: ScramMechanism = ScramMechanism.SHA_256, nonce: str = "server", iterations: int = 4096
) -> ScramServer:
    held = {
        user: ScramCredential.of_password(mechanism, password, salt=SALT, iterations=iterations)
        for user, password in USERS.items()
    }
    return ScramServer(mechanism, held.get, nonce=nonce)


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("user", [*USERS])
def test_both_sides_prove_that_they_know_the_password(mechanism: ScramMechanism, user: str) -> None:
    server = scram_server(mechanism)
    client = ScramClient(mechanism, user, USERS[user], nonce="client")
    final = client.respond(server.evaluate(client.first()))
    assert final is not None
    assert client.respond(server.evaluate(final)) is None
    assert server.user == user and client.is_complete


def test_example_of_rfc_7677() -> None:
    salt = b"[m\x99h\x9d\x125\x8e\xec\xa0K\x14\x126\xfa\x81"
    held = ScramCredential.of_password(ScramMechanism.SHA_256, "pencil", salt=salt, iterations=4096)
    server = ScramServer(ScramMechanism.SHA_256, {"user": held}.get, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    client = ScramClient(ScramMechanism.SHA_256, "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = server.evaluate(client.first())
    assert challenge == (b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    final = client.respond(challenge)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert server.evaluate(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_name_with_comma_and_equals_is_escaped() -> None:
    user = "a=b,c"
    held = ScramCredential.of_password(ScramMechanism.SHA_256, "x", salt=SALT, iterations=4096)
    server = ScramServer(ScramMechanism.SHA_256, {user: held}.get, nonce="s")
    client = ScramClient(ScramMechanism.SHA_256, user, "x", nonce="c")
    assert b"n=a=3Db=2Cc," in client.first()
    final = client.respond(server.evaluate(client.first()))
    assert final is not None
    server.evaluate(final)
    assert server.user == user


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"n,,n=alice",
        b"n,,n=nobody,r=abc",
        b"y,,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,,n=al=ice,r=abc",
        b"n,,n=alice,r=a b",
        b"n,,n=alice,r=abc,tokenauth=true",
        b"\x00" * 100,
        b"\xff\xfe",
    ],
)
def test_first_message_that_leads_nowhere_fails_with_one_answer(token: bytes) -> None:
    server = scram_server()
    with pytest.raises(SaslFailed, match="due to invalid credentials with SASL mechanism SCRAM-SHA-256"):
        server.evaluate(token)
    assert server.user is None


def test_another_authorization_id_is_refused() -> None:
    with pytest.raises(SaslFailed, match="authorization id that is different"):
        scram_server().evaluate(b"n,a=bob,n=alice,r=abc")


def test_credential_with_too_few_iterations_opens_nothing() -> None:
    with pytest.raises(SaslFailed):
        scram_server(iterations=1000).evaluate(b"n,,n=alice,r=abc")


@pytest.mark.parametrize("tamper", ["password", "nonce", "proof length", "no base64", "replay"])
def test_final_message_that_proves_nothing_is_refused(tamper: str) -> None:
    server = scram_server()
    client = ScramClient(ScramMechanism.SHA_256, "alice", "wrong" if tamper == "password" else "secret", nonce="c")
    final = client.respond(server.evaluate(client.first()))
    assert final is not None
    if tamper == "nonce":
        final = final.replace(b"r=cserver", b"r=cother")
    elif tamper == "proof length":
        final = final.partition(b",p=")[0] + b",p=AAAA"
    elif tamper == "no base64":
        final = final.partition(b",p=")[0] + b",p=A"
    elif tamper == "replay":
        server = scram_server(nonce="another")
        server.evaluate(client.first())
    with pytest.raises(SaslFailed, match="invalid credentials"):
        server.evaluate(final)
    assert server.user is None


def test_client_does_not_believe_a_server_that_does_not_know_the_password() -> None:
    impostor = ScramServer(
        ScramMechanism.SHA_256,
        lambda user: ScramCredential.of_password(ScramMechanism.SHA_256, "guess", salt=SALT, iterations=4096),
        nonce="s",
    )
    client = ScramClient(ScramMechanism.SHA_256, "alice", "secret", nonce="c")
    client.respond(impostor.evaluate(client.first()))
    with pytest.raises(SaslFailed, match="did not prove that it knows the password"):
        client.respond(b"v=" + b"A" * 43 + b"=")
    assert not client.is_complete


@pytest.mark.parametrize(
    ("challenge", "words"),
    [
        (b"r=stranger,s=QUJD,i=4096", "does not continue"),
        (b"r=c,s=QUJD,i=4096", "does not continue"),
        (b"r=cs,s=QUJD,i=1", "minimum"),
        (b"r=cs,s=QUJD,i=100001", "at most 100000.*maxIterations"),
        (b"r=cs,s=QUJD,i=999999999", "at most 100000"),
        (b"r=cs,s=" + b"QUJD" * 4096 + b",i=4096", "16384 is the limit"),
        (b"r=cs,s=QUJD,i=0", "cannot be read"),
        (b"nonsense", "cannot be read"),
    ],
)
def test_client_refuses_a_weak_or_wrong_challenge(challenge: bytes, words: str) -> None:
    client = ScramClient(ScramMechanism.SHA_256, "alice", "secret", nonce="c")
    with pytest.raises(SaslFailed, match=words):
        client.respond(challenge)


def scram_login(options: str = "") -> Login:
    jaas = f'x required username="alice" password="secret" {options};'
    return login_of({"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": jaas})[1]


def test_jaas_option_changes_how_many_iterations_a_server_may_ask_for() -> None:
    client = scram_login("maxIterations=5000").begin()
    nonce = client.first().decode().rpartition("r=")[2]
    with pytest.raises(SaslFailed, match="at most 5000"):
        client.respond(f"r={nonce}s,s=QUJD,i=5001".encode())
    assert client.respond(f"r={nonce}s,s=QUJD,i=5000".encode())


@pytest.mark.parametrize("value", ["4095", "many", "-1", "1000000000"])
def test_jaas_option_for_iterations_must_be_a_number_in_range(value: str) -> None:
    with pytest.raises(ConfigError, match="maxIterations is a number from 4096"):
        scram_login(f'maxIterations="{value}"')


def test_credentials_are_stored_as_kafka_stores_them_and_do_not_show_themselves() -> None:
    held = ScramCredential.of_password(ScramMechanism.SHA_512, "secret", salt=SALT, iterations=8192)
    text = held.encode()
    assert text.startswith("salt=MDEyMzQ1Njc4OWFiY2RlZg==,stored_key=") and text.endswith(",iterations=8192")
    assert ScramCredential.decode(text) == held
    assert "salt" not in repr(held)


@pytest.mark.parametrize("text", ["", "salt=QQ==", "salt=?,stored_key=QQ==,server_key=QQ==,iterations=1", "a=b,c=d"])
def test_unusable_credential_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="SCRAM credential"):
        ScramCredential.decode(text)
