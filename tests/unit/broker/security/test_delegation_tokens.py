"""Delegation tokens: rights to create, renew and expire one; their znodes; authentication with SCRAM."""

import asyncio
import base64
import json

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.security.principal import Principal
from barnabas.broker.security.token_store import TokenStore
from barnabas.broker.security.tokens import DelegationTokens, TokenLimits, concerns
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.wire.auth.exchange import SaslFailed
from barnabas.wire.auth.mechanisms.scram import ScramClient, ScramMechanism, ScramServer
from tests.support.waiting import eventually
from tests.unit.broker.zookeeper_client.zookeeper_fixture import Ensemble, session, zookeeper

ALICE, BOB, CAROL = (Principal("User", name) for name in ("alice", "bob", "carol"))
LIMITS = TokenLimits(lifetime_ms_max=10_000, renewal_ms=1_000)


def tokens(secret: str | None = "key") -> DelegationTokens:
    return DelegationTokens(secret, LIMITS)


def made(known: DelegationTokens, *, lifetime_ms: int = -1, now_ms: int = 0) -> bytes:
    """Alice's token, made by Carol, which Bob may renew. The answer is its HMAC."""
    info = known.create(
        token_id="id", owner=ALICE, requester=CAROL, renewers=(BOB,), lifetime_ms=lifetime_ms, now_ms=now_ms
    )
    known.changed(info)
    return known.hmac_of("id")


@pytest.mark.parametrize(
    ("lifetime_ms", "max_ms", "expiry_ms"), [(-1, 10_000, 1_000), (0, 10_000, 1_000), (500, 500, 500), (10**9, 10_000, 1_000)]
)  # fmt: skip
def test_token_lives_as_long_as_asked_within_the_brokers_limits(lifetime_ms: int, max_ms: int, expiry_ms: int) -> None:
    known = tokens()
    made(known, lifetime_ms=lifetime_ms, now_ms=100)
    (info,) = known
    assert (info.max_timestamp_ms, info.expiry_timestamp_ms) == (100 + max_ms, 100 + expiry_ms)


def test_owner_and_renewer_renew_up_to_the_longest_life() -> None:
    known = tokens()
    hmac = made(known)
    assert known.renew(hmac, ALICE, period_ms=-1, now_ms=900).expiry_timestamp_ms == 1_900
    assert known.renew(hmac, BOB, period_ms=5_000, now_ms=900).expiry_timestamp_ms == 5_900
    assert known.renew(hmac, BOB, period_ms=10**9, now_ms=900).expiry_timestamp_ms == 10_000


@pytest.mark.parametrize(
    ("principal", "hmac", "now_ms", "code"),
    [
        (CAROL, None, 0, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
        (ALICE, b"another", 0, ErrorCode.DELEGATION_TOKEN_NOT_FOUND),
        (ALICE, None, 1_001, ErrorCode.DELEGATION_TOKEN_EXPIRED),
    ],
)
def test_tokens_that_may_not_be_renewed_or_expired(
    principal: Principal, hmac: bytes | None, now_ms: int, code: ErrorCode
) -> None:
    """The requester of a token for another owner may not renew it, as in Kafka."""
    known = tokens()
    own = made(known)
    for change in (known.renew, known.expire):
        with pytest.raises(Refused) as refused:
            change(hmac or own, principal, period_ms=5, now_ms=now_ms)
        assert refused.value.code is code


def test_token_is_ended_at_once_even_when_it_has_expired() -> None:
    known = tokens()
    info, at_once = known.expire(made(known), BOB, period_ms=-1, now_ms=5_000)
    assert at_once and info.expiry_timestamp_ms == 5_000
    info, at_once = known.expire(known.hmac_of("id"), BOB, period_ms=10, now_ms=50)
    assert not at_once and info.expiry_timestamp_ms == 60
    known.removed("id")
    with pytest.raises(Refused):
        known.expire(known.hmac_of("id"), BOB, period_ms=-1, now_ms=0)


def test_tokens_cannot_be_created_without_a_secret_key() -> None:
    known = tokens(None)
    with pytest.raises(Refused) as refused:
        known.create(token_id="id", owner=ALICE, requester=ALICE, renewers=(), lifetime_ms=1, now_ms=0)
    assert refused.value.code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert known.credential(ScramMechanism.SHA_256, "id", now_ms=0) is None


def test_token_concerns_its_owner_requester_and_renewers() -> None:
    known = tokens()
    made(known)
    (info,) = known
    assert [concerns(info, principal) for principal in (ALICE, BOB, CAROL, Principal("User", "dave"))] == [
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_scram_takes_a_token_for_its_owner(mechanism: ScramMechanism) -> None:
    known = tokens()
    password = base64.b64encode(made(known)).decode()

    def server(now_ms: int = 0) -> ScramServer:
        return ScramServer(
            mechanism,
            lambda user: None,
            nonce="server",
            token_of=lambda token_id: known.credential(mechanism, token_id, now_ms=now_ms),
        )

    def converse(server: ScramServer, *, password: str = password, delegation_token: bool = True) -> None:
        client = ScramClient(mechanism, "id", password, nonce="client", delegation_token=delegation_token)
        final = client.respond(server.evaluate(client.first()))
        assert final is not None
        client.respond(server.evaluate(final))
        assert client.is_complete

    good = server()
    converse(good)
    assert (good.user, good.by_delegation_token, good.expires_at_ms) == ("alice", True, 1_000)
    for bad, options in (
        (server(), {"password": "wrong"}),
        (server(), {"delegation_token": False}),  # a token's id is no user's name
        (server(now_ms=1_001), {}),
    ):
        with pytest.raises(SaslFailed):
            converse(bad, **options)  # type: ignore[arg-type]
        assert bad.user is None


async def test_token_lies_in_zookeeper_without_its_secret_and_the_other_broker_hears_of_it() -> None:
    async with zookeeper() as ensemble, session(ensemble) as one, session(ensemble) as other:
        here, there = tokens(), tokens()
        writer, reader = TokenStore(one, here, ensemble.clock), TokenStore(other, there, ensemble.clock)
        await writer.start()
        await reader.start()
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(reader.run())
            info = here.create(token_id="id", owner=ALICE, requester=ALICE, renewers=(BOB,), lifetime_ms=-1, now_ms=5)
            await writer.write(info)
            await eventually(lambda: len(there))
            assert list(there) == [info]
            stored, _ = await one.get(paths.delegation_token("id"))
            assert json.loads(stored) == {
                "version": 3, "owner": "User%3Aalice", "tokenRequester": "User%3Aalice",
                "renewers": ["User%3Abob"], "issueTimestamp": 5, "maxTimestamp": 10_005,
                "expiryTimestamp": 1_005, "tokenId": "id",
            }  # fmt: skip
            late = tokens()
            await TokenStore(other, late, ensemble.clock).start()
            assert list(late) == [info]
            await writer.remove("id")
            await writer.remove("id")  # another broker was faster: no harm
            await eventually(lambda: not len(there))
            assert not await one.children(paths.DELEGATION_TOKENS)
            following.cancel()


async def test_expired_token_that_cannot_be_removed_ends_no_broker_and_keeps_no_other(
    ensemble: Ensemble, zk: ZooKeeperSession
) -> None:
    """The controller removes them, in a task whose failure ends the broker; the next controller would be the next to end."""

    known = tokens()
    store = TokenStore(zk, known, ensemble.clock)
    await store.start()
    for token_id in ("locked", "other"):
        await store.write(
            known.create(token_id=token_id, owner=ALICE, requester=ALICE, renewers=(), lifetime_ms=1, now_ms=0)
        )
    await zk.create(f"{paths.delegation_token('locked')}/something")
    async with asyncio.TaskGroup() as tasks:
        removing = tasks.create_task(store.remove_expired(5, lambda: True))
        await eventually(lambda: len(known) <= 1)
        await asyncio.sleep(0.05)
        assert not removing.done()
        removing.cancel()
    assert await zk.children(paths.DELEGATION_TOKENS) == ("locked",)
