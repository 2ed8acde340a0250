"""kazoo, as the brokers use it: operations, watches, transactions, ACLs, sessions."""

import threading

import pytest
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    InvalidACLError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.protocol.states import EventType
from kazoo.security import ACL, Id, make_digest_acl

from barnabas.testing import wait_until
from tests.scenarios.zookeeper.zk_process import ZooKeeperProcess, connected


def test_the_life_of_a_znode(zk: KazooClient) -> None:
    path, created = zk.create("/a", b"one", include_data=True)
    assert (path, created.version, created.dataLength) == ("/a", 0, 3)
    data, stat = zk.get("/a")
    assert (data, stat) == (b"one", created)
    changed = zk.set("/a", b"four", version=0)
    assert (changed.version, changed.czxid, changed.mzxid) == (1, created.czxid, created.czxid + 1)
    with pytest.raises(BadVersionError):
        zk.set("/a", b"", version=0)
    zk.create("/a/b/c", makepath=True)
    with pytest.raises(NotEmptyError):
        zk.delete("/a")
    with pytest.raises(NodeExistsError):
        zk.create("/a")
    stat = zk.exists("/a")
    assert (stat.numChildren, stat.cversion) == (1, 1)
    assert zk.get_children("/a", include_data=True)[0] == ["b"]
    zk.delete("/a", recursive=True)
    assert zk.exists("/a") is None
    with pytest.raises(NoNodeError):
        zk.get("/a")


def test_large_and_empty_data(zk: KazooClient) -> None:
    for data in (b"", b"x", b"y" * 1_000_000):
        zk.ensure_path("/d")
        zk.set("/d", data)
        assert zk.get("/d")[0] == data


def test_sequential_names_count_up_across_deletes(zk: KazooClient) -> None:
    names = [zk.create("/q-", sequence=True) for _ in range(3)]
    zk.delete(names[2])
    assert [*names, zk.create("/q-", sequence=True)] == [f"/q-{number:010d}" for number in range(4)]


def test_ephemerals_go_with_the_session(server: ZooKeeperProcess, root: str, zk: KazooClient) -> None:
    with connected(server.address + root) as other:
        other.create("/e", ephemeral=True)
        assert zk.get("/e")[1].ephemeralOwner == other.client_id[0]
        with pytest.raises(NoChildrenForEphemeralsError):
            other.create("/e/f")
    assert zk.exists("/e") is None


def test_watch_comes_before_the_answer_that_shows_the_change(zk: KazooClient) -> None:
    zk.create("/w", b"0")
    for number in range(1, 30):
        seen = threading.Event()
        zk.get("/w", watch=lambda _event, seen=seen: seen.set())
        results = [zk.set_async("/w", b"%d" % number), zk.get_async("/w")]
        assert results[1].get(timeout=60)[0] == b"%d" % number
        # kazoo hands events to a thread of their own, so all that can be said is that it comes.
        assert seen.wait(60)


def test_standard_watches_fire_once_and_for_what_they_watch(zk: KazooClient) -> None:
    events: list[tuple[str, str]] = []

    def note(event) -> None:
        events.append((event.type, event.path))

    zk.exists("/x", watch=note)
    zk.get_children("/", watch=note)
    zk.create("/x")
    wait_until(lambda: len(events) == 2)
    assert sorted(events) == [(EventType.CHILD, "/"), (EventType.CREATED, "/x")]
    zk.get("/x", watch=note)
    zk.get_children("/x", watch=note)
    zk.create("/x/y")
    zk.set("/x", b"1")
    zk.set("/x", b"2")
    wait_until(lambda: len(events) == 4)
    assert sorted(events[2:]) == [(EventType.CHANGED, "/x"), (EventType.CHILD, "/x")]


def test_transactions_happen_whole_or_not_at_all(zk: KazooClient) -> None:
    zk.create("/t", b"0")
    transaction = zk.transaction()
    transaction.check("/t", 0)
    transaction.create("/t/a-", sequence=True)
    transaction.set_data("/t", b"1")
    transaction.delete("/t/a-0000000000")
    created, changed = transaction.commit()[1:3]
    assert (created, changed.version) == ("/t/a-0000000000", 1)
    transaction = zk.transaction()
    transaction.create("/t/b")
    transaction.check("/t", 7)
    transaction.create("/t/c")
    assert [type(result) for result in transaction.commit()] == [RolledBackError, BadVersionError, RuntimeInconsistency]
    assert zk.get_children("/t") == []


def test_acl(server: ZooKeeperProcess, root: str, zk: KazooClient) -> None:
    acl = make_digest_acl("joe", "secret", all=True)
    zk.create("/private", b"x", acl=[acl])
    with pytest.raises(NoAuthError):
        zk.get("/private")
    zk.add_auth("digest", "joe:secret")
    assert zk.get("/private")[0] == b"x"
    assert zk.get_acls("/private")[0] == [acl]
    zk.set_acls("/private", [make_digest_acl("joe", "secret", read=True)])
    with pytest.raises(NoAuthError):
        zk.set("/private", b"y")
    with pytest.raises(InvalidACLError):
        zk.create("/other", acl=[ACL(31, Id("digest", "no-colon"))])
    with connected(server.address + root, auth_data=[("digest", "joe:secret")]) as other:
        assert other.get("/private")[0] == b"x"


def test_unknown_authentication_scheme_is_refused(server: ZooKeeperProcess) -> None:
    with connected(server.address) as client, pytest.raises(AuthFailedError):
        client.add_auth("kerberos", "x")


def test_session_survives_a_lost_connection_and_watches_are_set_again(zk: KazooClient) -> None:
    zk.create("/w")
    zk.create("/e", ephemeral=True)
    changed = threading.Event()
    zk.get("/w", watch=lambda _event: changed.set())
    session = zk.client_id
    suspended = threading.Event()
    zk.add_listener(lambda state: suspended.set() if state == KazooState.SUSPENDED else None)
    zk._connection._socket.shutdown(2)
    assert suspended.wait(60)
    wait_until(lambda: zk.state == KazooState.CONNECTED)
    assert zk.client_id == session
    assert zk.exists("/e")
    zk.set("/w", b"x")
    assert changed.wait(60)


def test_session_that_falls_silent_expires_and_watchers_learn_of_it(
    server: ZooKeeperProcess, root: str, zk: KazooClient
) -> None:
    with connected(server.address + root, timeout_s=0.6) as silent:
        states: list[str] = []
        silent.create("/alive", ephemeral=True)
        gone = threading.Event()
        zk.exists("/alive", watch=lambda _event: gone.set())
        silent.add_listener(states.append)
        # A client that does not ping: kazoo's connection thread is held up in a callback of its own.
        hold = threading.Event()
        silent._connection.ping_outstanding.set()
        original = silent._connection._send_ping
        silent._connection._send_ping = lambda *_args: hold.wait(20)
        try:
            assert gone.wait(60)
            assert zk.exists("/alive") is None
        finally:
            silent._connection._send_ping = original
            hold.set()
        wait_until(lambda: KazooState.LOST in states)
        wait_until(lambda: silent.state == KazooState.CONNECTED)
        assert silent.exists("/alive") is None


def test_expired_session_cannot_be_resumed(server: ZooKeeperProcess) -> None:
    with connected(server.address) as first:
        stale = first.client_id
    lost = threading.Event()
    client = KazooClient(server.address, client_id=stale)
    client.add_listener(lambda state: lost.set() if state == KazooState.LOST else None)
    client.start(10)
    try:
        assert client.client_id[0] != stale[0]
    finally:
        client.stop()
        client.close()


def test_password_guards_a_session(server: ZooKeeperProcess, zk: KazooClient) -> None:
    session = zk.client_id[0]
    thief = KazooClient(server.address, client_id=(session, b"x" * 16))
    thief.start(10)
    try:
        assert thief.client_id[0] != session
        zk.get_children("/")
        assert zk.client_id[0] == session
    finally:
        thief.stop()
        thief.close()


def test_sync_and_who_we_are(zk: KazooClient) -> None:
    assert zk.sync("/") == "/"
    assert zk.server_version()[:2] == (3, 8)
    with pytest.raises((NoNodeError, SessionExpiredError)):
        zk.get("/nowhere")
