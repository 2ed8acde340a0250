"""The states of a connection during SASL."""

import pytest

from barnabas.wire.auth.exchange import SaslFailed
from barnabas.wire.auth.machine import IllegalState, Mechanism, NotAdmitted, RequestKind, SaslSession, State
from barnabas.wire.auth.mechanisms.plain import PlainServer

GOOD = b"\0alice\0secret"


class TwoSteps:
    """A mechanism with two tokens whose credential expires."""

    def __init__(self, expires_at_ms: int | None = None) -> None:
        self.user: str | None = None
        self.expires_at_ms = expires_at_ms
        self.by_delegation_token = False
        self._tokens = 0

    def evaluate(self, token: bytes) -> bytes:
        self._tokens += 1
        if self._tokens == 2:
            self.user = token.decode()
        return b"more" if self.user is None else b"done"


def session(reauth_ms: int = 0, expires_at_ms: int | None = None) -> SaslSession:
    users = {"alice": "secret", "bob": "secret"}
    return SaslSession(
        {
            "PLAIN": Mechanism(lambda: PlainServer(users), reauth_ms),
            "TWO": Mechanism(lambda: TwoSteps(expires_at_ms), reauth_ms),
        }
    )


def authenticated(reauth_ms: int = 0) -> SaslSession:
    made = session(reauth_ms)
    made.handshake("PLAIN", with_headers=True, now_ms=0)
    assert made.authenticate(GOOD, now_ms=0, wall_ms=0).user == "alice"
    return made


def admitted(made: SaslSession, now_ms: int = 0) -> set[RequestKind]:
    allowed = set()
    for kind in RequestKind:
        try:
            made.admit(kind, now_ms=now_ms)
        except NotAdmitted:
            continue
        allowed.add(kind)
    return allowed


def test_only_requests_for_authentication_are_admitted_before_it() -> None:
    made = session()
    assert admitted(made) == {RequestKind.VERSIONS, RequestKind.HANDSHAKE}
    made.handshake("PLAIN", with_headers=True, now_ms=0)
    assert admitted(made) == {RequestKind.AUTHENTICATE}
    made.authenticate(GOOD, now_ms=0, wall_ms=0)
    assert admitted(made) == set(RequestKind)


def test_failure_is_for_good() -> None:
    made = session()
    made.handshake("PLAIN", with_headers=True, now_ms=0)
    with pytest.raises(SaslFailed):
        made.authenticate(b"\0alice\0wrong", now_ms=0, wall_ms=0)
    assert made.state is State.FAILED and admitted(made) == set()
    with pytest.raises(SaslFailed):
        made.authenticate(GOOD, now_ms=0, wall_ms=0)


def test_unknown_mechanism_fails() -> None:
    made = session()
    with pytest.raises(SaslFailed, match="Unsupported SASL mechanism GSSAPI"):
        made.handshake("GSSAPI", with_headers=True, now_ms=0)
    assert made.state is State.FAILED
    assert made.mechanisms == ["PLAIN", "TWO"]


def test_old_handshake_is_followed_by_raw_tokens() -> None:
    made = session()
    made.handshake("PLAIN", with_headers=False, now_ms=0)
    assert made.takes_raw_tokens
    made.authenticate(GOOD, now_ms=0, wall_ms=0)
    assert not made.takes_raw_tokens


def test_several_tokens_and_only_the_last_opens() -> None:
    made = session()
    made.handshake("TWO", with_headers=True, now_ms=0)
    first = made.authenticate(b"x", now_ms=0, wall_ms=0)
    assert (first.token, first.user) == (b"more", None)
    assert not made.is_complete
    assert made.authenticate(b"carol", now_ms=0, wall_ms=0).user == "carol"


def test_second_handshake_is_an_illegal_state_where_sessions_do_not_end() -> None:
    made = authenticated()
    with pytest.raises(IllegalState):
        made.handshake("PLAIN", with_headers=True, now_ms=5_000)
    assert made.is_complete
    with pytest.raises(IllegalState):
        made.authenticate(GOOD, now_ms=5_000, wall_ms=0)
    assert made.is_complete


def test_expired_session_admits_nothing_but_a_new_handshake() -> None:
    made = authenticated(reauth_ms=10_000)
    assert admitted(made, now_ms=9_999) == set(RequestKind)
    assert admitted(made, now_ms=10_000) == {RequestKind.HANDSHAKE}
    made.handshake("PLAIN", with_headers=True, now_ms=10_000)
    assert made.authenticate(GOOD, now_ms=10_100, wall_ms=0).session_lifetime_ms == 10_000
    assert admitted(made, now_ms=20_000) == set(RequestKind)
    assert admitted(made, now_ms=20_100) == {RequestKind.HANDSHAKE}


def test_reauthentication_within_a_second_is_an_illegal_state() -> None:
    made = authenticated(reauth_ms=10_000)
    with pytest.raises(IllegalState):
        made.handshake("PLAIN", with_headers=True, now_ms=999)
    made.handshake("PLAIN", with_headers=True, now_ms=1_000)
    assert made.state is State.AUTHENTICATE


def test_reauthentication_changes_neither_user_nor_mechanism() -> None:
    made = authenticated(reauth_ms=10_000)
    made.handshake("PLAIN", with_headers=True, now_ms=2_000)
    with pytest.raises(SaslFailed, match="Cannot change principals during re-authentication"):
        made.authenticate(b"\0bob\0secret", now_ms=2_000, wall_ms=0)
    assert made.state is State.FAILED
    made = authenticated(reauth_ms=10_000)
    with pytest.raises(SaslFailed, match="not supported for re-authentication of mechanism 'PLAIN'"):
        made.handshake("TWO", with_headers=True, now_ms=2_000)
    assert made.state is State.FAILED


@pytest.mark.parametrize(
    ("reauth_ms", "expires_at_ms", "lifetime_ms"),
    [(0, None, 0), (5_000, None, 5_000), (0, 1_003_000, 3_000), (5_000, 1_003_000, 3_000), (2_000, 1_003_000, 2_000)],
)
def test_session_lives_as_long_as_broker_and_credential_allow(
    reauth_ms: int, expires_at_ms: int | None, lifetime_ms: int
) -> None:
    made = session(reauth_ms, expires_at_ms)
    made.handshake("TWO", with_headers=True, now_ms=0)
    made.authenticate(b"x", now_ms=0, wall_ms=1_000_000)
    assert made.authenticate(b"carol", now_ms=0, wall_ms=1_000_000).session_lifetime_ms == lifetime_ms
    assert (RequestKind.OTHER in admitted(made, now_ms=lifetime_ms)) is (lifetime_ms == 0)
