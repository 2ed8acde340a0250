"""OAUTHBEARER: tokens and key sets, rules for claims, the exchange on both sides, the sources of a client's tokens."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.base.errors import ConfigError
from barnabas.client.connection import Connection, authenticate
from barnabas.client.errors import AuthenticationFailed
from barnabas.client.key_sets import KeySets
from barnabas.client.oauth_login import TokenSource, _access_token, token_source
from barnabas.client.security import ClientSecurity
from barnabas.wire.auth.exchange import SaslFailed
from barnabas.wire.auth.jwt import InvalidToken, KeySet, UnknownKey, encode_unsecured, parse_jwt
from barnabas.wire.auth.mechanisms.oauthbearer import (
    OAUTH_MODULE,
    BearerToken,
    InsufficientScope,
    OAuthClient,
    OAuthServer,
    TokenRules,
    signed_validator,
    unsecured_validator,
)
from barnabas.wire.auth.registry import KeySetSettings
from tests.oauth_provider import AUDIENCE, ISSUER, Provider, SigningKey, b64, key_set, serving
from tests.support.waiting import eventually

ALGORITHMS = ["RS256", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA"]
NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey("one", "ES256")


# -- signatures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_signature_of_each_algorithm_and_one_that_was_tampered_with(algorithm: str) -> None:
    key = SigningKey("k", algorithm)
    keys = KeySet(key_set(key))
    token = key.token()
    keys.verify(parse_jwt(token))
    header, _, signature = token.split(".")
    forged = b64(json.dumps({"sub": "admin", "exp": 2**40, "iat": 0}).encode())
    with pytest.raises(InvalidToken, match="does not match"):
        keys.verify(parse_jwt(f"{header}.{forged}.{signature}"))


def test_key_is_found_by_its_id_and_only_among_those_of_the_algorithm(key: SigningKey) -> None:
    other = SigningKey("two", "RS256")
    keys = KeySet(key_set(other, key))
    keys.verify(parse_jwt(key.token()))
    with pytest.raises(UnknownKey):
        keys.verify(parse_jwt(key.token(header={"kid": "three"})))
    with pytest.raises(InvalidToken, match="algorithm"):
        keys.verify(parse_jwt(key.token(header={"kid": "two"})))
    keys.verify(parse_jwt(key.token(header={"kid": None})))  # the only key that suits


@pytest.mark.parametrize("header", [{"alg": "none"}, {"alg": None}, {"alg": "HS256"}, {"alg": 7}, {"crit": ["exp"]}])
def test_token_that_no_key_of_the_set_could_have_signed_is_refused(key: SigningKey, header: dict[str, Any]) -> None:
    """HS256 above all: servers were fooled into using a public key as a shared secret."""
    with pytest.raises(InvalidToken):
        KeySet(key_set(key)).verify(parse_jwt(key.token(header=header)))


@pytest.mark.parametrize(
    "document",
    [
        "", "[]", "{}", '{"keys": 1}', '{"keys": []}', '{"keys": [1, {"kty": "oct", "k": "AAAA"}]}',
        '{"keys": [{"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA"}]}',
        '{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}', "[" * 5000,
    ],
)  # fmt: skip
def test_document_without_usable_keys_is_not_a_key_set(document: str) -> None:
    with pytest.raises(ConfigError):
        KeySet(document)


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: f"{b64(raw)}.{b64(raw)}.{b64(raw)}"))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parse_jwt(text)
    except InvalidToken:
        return


def test_token_that_is_too_long_or_too_deep_is_refused() -> None:
    for text in ("x" * 100_000, f"{b64(b'[' * 40_000)}.{b64(b'{}')}."):
        with pytest.raises(InvalidToken):
            parse_jwt(text)


# -- claims -----------------------------------------------------------------------------------------------------------


def claims(**changes: Any) -> dict[str, Any]:
    said = {"iss": ISSUER, "aud": [AUDIENCE, "other"], "iat": NOW_S, "exp": NOW_S + 60, "sub": "alice", "scope": "a b"}
    return {name: value for name, value in (said | changes).items() if value is not None}


RULES = TokenRules(audiences=(AUDIENCE,), issuer=ISSUER)


def test_claims_of_a_good_token() -> None:
    assert RULES.check(claims(), now_ms=NOW_MS) == BearerToken("alice", NOW_MS + 60_000, frozenset("ab"))
    assert TokenRules(principal_claim="azp", scope_claim="roles").check(
        claims(azp="service", roles=["x"]), now_ms=NOW_MS
    ) == BearerToken("service", NOW_MS + 60_000, frozenset("x"))
    RULES.check(claims(exp=NOW_S - 29, aud=AUDIENCE), now_ms=NOW_MS)  # clocks may differ by 30 s


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exp": NOW_S - 30}, "expired"),
        ({"exp": None}, "exp"),
        ({"exp": "tomorrow"}, "exp"),
        ({"exp": True}, "exp"),
        ({"exp": float("inf")}, "exp"),
        ({"exp": 1e308}, "exp"),
        ({"iat": None}, "iat"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"iss": "https://evil.example"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "payroll"}, "audience"),
        ({"aud": None}, "audience"),
        ({"sub": None}, "sub"),
        ({"sub": "  "}, "sub"),
        ({"sub": 7}, "sub"),
    ],
)
def test_invalid_claim_is_named_in_the_error(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidToken, match=words):
        RULES.check(claims(**changes), now_ms=NOW_MS)


def test_unsecured_tokens_by_kafkas_options(key: SigningKey) -> None:
    validate = unsecured_validator(
        {"unsecuredValidatorPrincipalClaimName": "user", "unsecuredValidatorRequiredScope": "kafka"}, lambda: NOW_MS
    )
    good = encode_unsecured({"user": "bob", "exp": NOW_S + 1, "scope": ["kafka"]})
    assert validate(good).principal == "bob"
    with pytest.raises(InsufficientScope):
        validate(encode_unsecured({"user": "bob", "exp": NOW_S + 1}))
    for bad in ({"user": "bob", "exp": NOW_S}, {"user": "bob", "exp": NOW_S + 9, "iat": NOW_S + 5}, {"exp": NOW_S + 9}):
        with pytest.raises(InvalidToken):
            validate(encode_unsecured(bad))
    with pytest.raises(InvalidToken, match="signed"):
        validate(key.token())
    with pytest.raises(ConfigError):
        unsecured_validator({"unsecuredValidatorAllowableClockSkewMs": "-1"}, lambda: NOW_MS)


# -- the exchange -----------------------------------------------------------------------------------------------------


def server(key: SigningKey) -> OAuthServer:
    return OAuthServer(signed_validator(KeySet(key_set(key)).verify, RULES, lambda: int(time.time() * 1000)))


def test_exchange_with_extensions(key: SigningKey) -> None:
    ours, theirs = OAuthClient(key.token(), {"traceId": "123"}), server(key)
    assert ours.respond(theirs.evaluate(ours.first())) is None
    assert ours.is_complete and theirs.user == "alice"
    assert theirs.expires_at_ms is not None and 0 < theirs.expires_at_ms - time.time() * 1000 <= 60_000


def test_refusal_is_a_challenge_in_json_and_ends_when_the_client_has_read_it(key: SigningKey) -> None:
    ours, theirs = OAuthClient(key.token(aud="payroll"), {}), server(key)
    challenge = theirs.evaluate(ours.first())
    assert json.loads(challenge) == {"status": "invalid_token"}
    answer = ours.respond(challenge)
    assert answer == b"\x01" and not ours.is_complete
    with pytest.raises(SaslFailed, match="invalid_token"):
        theirs.evaluate(answer)
    assert theirs.user is None


@pytest.mark.parametrize(
    "message",
    [
        b"", b"\x01", b"n,,\x01\x01", b"n,,\x01auth=Bearer \x01\x01", b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01host=x\x01\x01", b"n,,\x01auth=Bearer abc\x01", b"p,,\x01auth=Bearer abc\x01\x01",
        b"n,,\x01auth=Bearer a\x00b\x01\x01", b"n,a=\xff,\x01auth=Bearer abc\x01\x01", b"\xff" * 1000,
    ],
)  # fmt: skip
def test_first_message_in_another_form_fails(key: SigningKey, message: bytes) -> None:
    theirs = server(key)
    with pytest.raises(SaslFailed):
        theirs.evaluate(message)
    assert theirs.user is None


def test_authorization_id_must_be_the_tokens_own_name(key: SigningKey) -> None:
    first = OAuthClient(key.token(), {}).first()
    theirs = server(key)
    theirs.evaluate(first.replace(b"n,,", b"n,a=alice,"))
    assert theirs.user == "alice"
    with pytest.raises(SaslFailed, match="different"):
        server(key).evaluate(first.replace(b"n,,", b"n,a=bob,"))


# -- a client's tokens ------------------------------------------------------------------------------------------------


def settings(url: str | None = None, **options: str) -> dict[str, str]:
    line = " ".join(f'{name}="{value}"' for name, value in options.items())
    found = {"sasl.jaas.config": f"{OAUTH_MODULE} required {line};", "sasl.login.retry.backoff.ms": "1"}
    return found if url is None else {**found, "sasl.oauthbearer.token.endpoint.url": url}


def test_token_of_an_endpoint_is_requested_by_the_standard_and_kept(key: SigningKey) -> None:
    with serving(Provider(key)) as provider:
        source = token_source(
            settings(f"{provider.url}/token", clientId="service", clientSecret="service-secret", scope="a b")
        )
        assert not source.is_fresh and not provider.requests
        token = source.get()
        assert parse_jwt(token).claims["sub"] == "service"
        assert source.is_fresh and source.get() == token
        assert [(path, body) for path, _, body in provider.requests] == [
            ("/token", "grant_type=client_credentials&scope=a+b")
        ]


@pytest.mark.parametrize(("path", "secret", "asked"), [("/token", "wrong", 1), ("/broken", "service-secret", 4)])
def test_endpoint_that_refuses_or_fails(key: SigningKey, path: str, secret: str, asked: int) -> None:
    with serving(Provider(key)) as provider:
        source = token_source(settings(f"{provider.url}{path}", clientId="service", clientSecret=secret))
        with pytest.raises(AuthenticationFailed, match=path) as failed:
            source.get()
        assert len(provider.requests) == asked  # a refusal is final, a failure may pass
    assert secret not in str(failed.value)


def test_response_nested_too_deeply_for_the_parser_has_no_token() -> None:
    with pytest.raises(AuthenticationFailed, match="has no access_token"):
        _access_token("https://x/token", b"[" * 200_000)


@pytest.mark.parametrize("url", [" file:///etc/hostname", "\tfile:///etc/hostname", "fi\nle:///etc/hostname"])
def test_url_of_a_file_with_leading_characters_is_recognised(url: str) -> None:
    """The parser of URLs skips such characters. With a client's secret in the settings, nothing is sent anywhere."""
    source = token_source(settings(url, clientId="service", clientSecret="secret"))
    assert source._fetch.__qualname__.startswith("_from_file")


def test_token_from_a_file_is_read_again_when_its_time_has_come(key: SigningKey, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(key.token(sub="first") + "\n")
    now = time.time()
    source = token_source(settings(path.as_uri()))
    assert parse_jwt(source.get()).claims["sub"] == "first"
    path.write_text(key.token(sub="second"))
    assert parse_jwt(source.get()).claims["sub"] == "first"
    aged = TokenSource(lambda: path.read_text(), {}, now_s=lambda: now)
    aged.get()
    now += 59
    assert not aged.is_fresh


def test_unsecured_token_of_a_client() -> None:
    source = token_source(
        settings(
            unsecuredLoginStringClaim_sub="bob",
            unsecuredLoginListClaim_scope=",a,b",
            unsecuredLoginNumberClaim_level="3",
            unsecuredLoginExtension_traceId="9",
        )
    )
    said = parse_jwt(source.get())
    assert said.header["alg"] == "none"
    assert (said.claims["sub"], said.claims["scope"], said.claims["level"]) == ("bob", ["a", "b"], 3)
    assert b"\x01traceId=9\x01" in source.exchange().first()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "sasl.jaas.config"),
        (settings(), "token.endpoint.url"),
        (settings(unsecuredLoginLifetimeSeconds="60"), "StringClaim_sub"),
        (settings(unsecuredLoginStringClaim_sub="x", unsecuredLoginLifetimeSeconds="soon"), "numbers"),
        (settings("ftp://x/y"), "https://"),
        (settings("https://x/token"), "clientId"),
        (settings("file:///t", extension_auth="x"), "extension"),
        (settings("file:///t", extension_a="\x01"), "extension"),
    ],
)
def test_settings_without_a_source_of_tokens_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        token_source(given)


# -- key sets that change ---------------------------------------------------------------------------------------------


async def test_key_set_is_loaded_again_when_a_token_has_a_new_key(key: SigningKey) -> None:
    with serving(Provider(key)) as provider:
        source = KeySets(asyncio.get_running_loop().time).of(
            KeySetSettings(f"{provider.url}/jwks", refresh_ms=3_600_000, backoff_ms=1, backoff_max_ms=2)
        )
        with pytest.raises(InvalidToken, match="not been loaded"):
            source.verify(parse_jwt(key.token()))
        task = asyncio.create_task(source.run())
        await eventually(lambda: verified(source, key))
        new = SigningKey("new", "ES256")
        provider.keys.append(new)
        await eventually(lambda: verified(source, new))
        assert len(provider.requests) == 2
        stranger = SigningKey("stranger", "ES256")
        for _ in range(50):  # strangers cannot make the broker ask for more
            assert not verified(source, stranger)
        await asyncio.sleep(0)
        assert len(provider.requests) == 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def verified(source: Any, key: SigningKey) -> bool:
    try:
        source.verify(parse_jwt(key.token()))
    except InvalidToken:
        return False
    return True


def test_file_that_is_not_a_key_set_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("{}")
    sets = KeySets(lambda: 0.0)
    for url in ((tmp_path / "keys").as_uri(), (tmp_path / "missing").as_uri(), "gopher://x"):
        with pytest.raises(ConfigError, match=r"jwks\.endpoint\.url"):
            sets.of(KeySetSettings(url, 1, 1, 1))


async def test_token_without_a_known_expiry_is_fetched_once_per_login_and_never_on_the_loop() -> None:
    """A slow provider of opaque tokens must not block a whole broker whose links log in with them."""
    fetched_by: list[threading.Thread] = []

    def fetch() -> str:
        fetched_by.append(threading.current_thread())
        return "opaque"

    class Broker:
        address = "h:1"

        async def request(self, message: object, response_type: type, *, timeout_ms: int) -> object:
            return response_type()

        async def compute(self, work: Callable[[], object]) -> object:
            return work()

    source = TokenSource(fetch, {})
    security = ClientSecurity(mechanism="OAUTHBEARER", begin=source.exchange, tokens=source)
    for _ in range(2):
        await authenticate(cast(Connection, Broker()), security, timeout_ms=1_000)
    assert len(fetched_by) == 2
    assert threading.main_thread() not in fetched_by
