"""Behaviour that the model does not cover: events inside a multi, ACLs, persistent watches, setWatches, ZooKeeper's
oddities."""

import struct

import pytest

from barnabas.base.znode_path import is_valid_path
from barnabas.zookeeper import acl as acls
from barnabas.zookeeper import reads, wire
from barnabas.zookeeper.watches import Client
from barnabas.zookeeper.wire import Err, Event, Op, Perm, Reader
from tests.unit.zookeeper.zk_requests import (
    Driver,
    create,
    delete,
    multi,
    multi_results,
    set_acl,
    set_data,
    stat,
    watched,
)


def ask(driver: Driver, client: Client, op: Op, body: bytes) -> tuple[int, bytes, list[tuple[Event, str]]]:
    err, answer, events = reads.read(driver.machine.tree, client, op, Reader(body))
    return err, answer, [(event.event, event.path) for event in events]


def events(written) -> list[tuple[Event, str, list[int]]]:
    return [(event.event, event.path, [client.session_id for client in event.clients]) for event in written.events]


def test_multi_that_creates_and_deletes_sends_both_events() -> None:
    driver = Driver()
    client, watcher = driver.client(1), driver.client(2)
    ask(driver, watcher, Op.EXISTS, watched("/a", True))
    ask(driver, watcher, Op.GET_CHILDREN, watched("/", True))
    written = driver.write(client, Op.MULTI, multi((Op.CREATE, create("/a")), (Op.DELETE, delete("/a"))))
    assert events(written) == [(Event.CREATED, "/a", [2]), (Event.CHILDREN_CHANGED, "/", [2])]
    assert "/a" not in driver.machine.tree.nodes


def test_multi_sees_its_own_earlier_operations() -> None:
    driver = Driver()
    client = driver.client(1)
    operations = (
        (Op.CREATE2, create("/p")),
        (Op.CREATE, create("/p/s-", flags=2)),
        (Op.CREATE, create("/p/s-", flags=3)),
        (Op.SET_DATA, set_data("/p", b"x", 0)),
        (Op.CHECK, delete("/p", 1)),
        (Op.DELETE, delete("/p/s-0000000000", 0)),
    )
    results = multi_results(driver.write(client, Op.MULTI, multi(*operations)).body)
    assert [path for _, _, path, _ in results[:3]] == ["/p", "/p/s-0000000000", "/p/s-0000000001"]
    assert {err for _, err, _, _ in results} == {0}
    parent = stat(driver.machine.tree.nodes["/p"].stat())
    assert (parent.version, parent.cversion, parent.children) == (1, 3, 1)


def test_multi_with_an_unknown_operation_is_a_marshalling_error_and_takes_a_zxid() -> None:
    driver = Driver()
    client = driver.client(1)
    before = driver.machine.last_zxid
    assert driver.write(client, Op.MULTI, multi((Op.SET_ACL, b""))).err == Err.MARSHALLING_ERROR
    assert driver.machine.last_zxid == before + 1


def test_closing_a_session_deletes_its_ephemerals_and_notifies_each_watcher_once() -> None:
    driver = Driver()
    client, watcher = driver.client(1), driver.client(2)
    driver.write(client, Op.CREATE, create("/e", flags=1))
    driver.write(client, Op.CREATE, create("/f", flags=1))
    ask(driver, watcher, Op.GET_DATA, watched("/e", True))
    ask(driver, watcher, Op.GET_CHILDREN, watched("/e", True))
    ask(driver, watcher, Op.GET_CHILDREN, watched("/", True))
    assert events(driver.close(client)) == [(Event.DELETED, "/e", [2]), (Event.CHILDREN_CHANGED, "/", [2])]
    assert driver.machine.tree.ephemerals == {}


def test_no_children_under_an_ephemeral() -> None:
    driver = Driver()
    client = driver.client(1)
    driver.write(client, Op.CREATE, create("/e", flags=1))
    assert driver.write(client, Op.CREATE, create("/e/c")).err == Err.NO_CHILDREN_FOR_EPHEMERALS


def test_container_is_deleted_once_it_was_used_and_is_empty() -> None:
    driver = Driver()
    client = driver.client(1)
    tree = driver.machine.tree
    driver.write(client, Op.CREATE_CONTAINER, create("/c", flags=4))
    assert list(tree.expired_candidates(now_ms=driver.now_ms)) == []
    driver.write(client, Op.CREATE, create("/c/x"))
    assert list(tree.expired_candidates(now_ms=driver.now_ms)) == []
    driver.write(client, Op.DELETE, delete("/c/x"))
    assert list(tree.expired_candidates(now_ms=driver.now_ms)) == ["/c"]
    zxid = driver.machine.last_zxid + 1
    assert driver.machine.delete_container("/c", zxid=zxid, now_ms=driver.now_ms) is not None
    assert driver.machine.delete_container("/c", zxid=zxid + 1, now_ms=driver.now_ms) is None


def test_persistent_watch_stays_and_recursive_watch_hears_of_descendants_but_not_of_child_lists() -> None:
    driver = Driver()
    client, here, below = driver.client(1), driver.client(2), driver.client(3)
    driver.write(client, Op.CREATE, create("/a"))
    assert ask(driver, here, Op.ADD_WATCH, wire.text("/a") + struct.pack(">i", 0))[:2] == (0, bytes(4))
    assert ask(driver, below, Op.ADD_WATCH, wire.text("/a") + struct.pack(">i", 1))[0] == 0
    for _ in range(2):
        written = driver.write(client, Op.CREATE, create("/a/b"))
        assert events(written) == [(Event.CREATED, "/a/b", [3]), (Event.CHILDREN_CHANGED, "/a", [2])]
        assert events(driver.write(client, Op.SET_DATA, set_data("/a", b""))) == [(Event.DATA_CHANGED, "/a", [2, 3])]
        assert events(driver.write(client, Op.DELETE, delete("/a/b"))) == [
            (Event.DELETED, "/a/b", [3]),
            (Event.CHILDREN_CHANGED, "/a", [2]),
        ]
    for watcher in (here, below):
        assert ask(driver, watcher, Op.REMOVE_WATCHES, wire.text("/a") + struct.pack(">i", 3))[0] == 0
        assert ask(driver, watcher, Op.REMOVE_WATCHES, wire.text("/a") + struct.pack(">i", 3))[0] == Err.NO_WATCHER
    assert events(driver.write(client, Op.SET_DATA, set_data("/a", b""))) == []


def test_standard_watch_beside_a_recursive_one_still_hears_of_child_lists() -> None:
    driver = Driver()
    client, watcher = driver.client(1), driver.client(2)
    ask(driver, watcher, Op.ADD_WATCH, wire.text("/") + struct.pack(">i", 1))
    ask(driver, watcher, Op.GET_CHILDREN, watched("/", True))
    assert events(driver.write(client, Op.CREATE, create("/a"))) == [
        (Event.CREATED, "/a", [2]),
        (Event.CHILDREN_CHANGED, "/", [2]),
    ]
    assert events(driver.write(client, Op.CREATE, create("/b"))) == [(Event.CREATED, "/b", [2])]


def test_set_watches_sends_missed_events_and_watches_the_rest() -> None:
    driver = Driver()
    client = driver.client(1)
    for path in ("/same", "/changed", "/gone", "/parent"):
        driver.write(client, Op.CREATE, create(path))
    seen = driver.machine.last_zxid
    driver.write(client, Op.SET_DATA, set_data("/changed", b"x"))
    driver.write(client, Op.DELETE, delete("/gone"))
    driver.write(client, Op.CREATE, create("/parent/c"))
    driver.write(client, Op.CREATE, create("/new"))
    back = driver.client(2)
    request = struct.pack(">q", seen) + b"".join(
        wire.texts(paths)
        for paths in (["/same", "/changed", "/gone"], ["/new", "/none"], ["/parent", "/same", "/gone"], ["/p"], ["/r"])
    )
    err, _, missed = ask(driver, back, Op.SET_WATCHES2, request)
    assert err == 0
    assert missed == [
        (Event.DATA_CHANGED, "/changed"),
        (Event.DELETED, "/gone"),
        (Event.CREATED, "/new"),
        (Event.CHILDREN_CHANGED, "/parent"),
        (Event.DELETED, "/gone"),
    ]
    assert events(driver.write(client, Op.SET_DATA, set_data("/same", b"x")))[0][2] == [2]
    assert events(driver.write(client, Op.CREATE, create("/none"))) == [(Event.CREATED, "/none", [2])]
    assert events(driver.write(client, Op.CREATE, create("/p"))) == [(Event.CREATED, "/p", [2])]
    driver.write(client, Op.CREATE, create("/r"))
    assert events(driver.write(client, Op.CREATE, create("/r/deep"))) == [(Event.CREATED, "/r/deep", [2])]


def test_acl_is_checked_where_zookeeper_checks_it() -> None:
    driver = Driver()
    owner, stranger, boss = driver.client(1), driver.client(2), driver.client(3)
    identity = ("digest", acls.digest_of("joe:secret"))
    owner.identities.append(identity)
    boss.identities.append(acls.SUPER)
    private = ((acls.ALL, "auth", ""),)
    assert driver.write(stranger, Op.CREATE, create("/x", acl=private)).err == Err.INVALID_ACL
    assert driver.write(stranger, Op.CREATE, create("/x", acl=())).err == Err.INVALID_ACL
    assert driver.write(owner, Op.CREATE, create("/x", acl=private)).err == 0
    assert driver.machine.tree.nodes["/x"].acl == ((acls.ALL, *identity),)
    for op, body in (
        (Op.SET_DATA, set_data("/x", b"")),
        (Op.CREATE, create("/x/y")),
        (Op.SET_ACL, set_acl("/x", acls.OPEN_ACL)),
        (Op.CHECK, delete("/x")),
    ):
        assert driver.write(stranger, op, body).err == Err.NO_AUTH
    for op in (Op.GET_DATA, Op.EXISTS, Op.GET_CHILDREN, Op.GET_CHILDREN2):
        assert ask(driver, stranger, op, watched("/x"))[0] == Err.NO_AUTH
        assert ask(driver, boss, op, watched("/x"))[0] == 0
    assert ask(driver, stranger, Op.GET_ACL, wire.text("/x"))[0] == Err.NO_AUTH
    # DELETE is the parent's permission.
    assert driver.write(stranger, Op.DELETE, delete("/x")).err == 0


def test_clients_that_may_not_read_a_node_get_no_events() -> None:
    driver = Driver()
    owner, stranger = driver.client(1), driver.client(2)
    owner.identities.append(("digest", acls.digest_of("joe:secret")))
    ask(driver, stranger, Op.EXISTS, watched("/x", True))
    ask(driver, stranger, Op.GET_CHILDREN, watched("/", True))
    written = driver.write(owner, Op.CREATE, create("/x", acl=((acls.ALL, "auth", ""),)))
    assert events(written) == [(Event.CHILDREN_CHANGED, "/", [2])]


def test_digests_are_hidden_from_readers_without_admin() -> None:
    driver = Driver()
    client = driver.client(1)
    acl = ((int(Perm.READ), "world", "anyone"), (acls.ALL, "digest", "joe:abc"))
    driver.write(client, Op.CREATE, create("/x", acl=acl))
    _, body, _ = ask(driver, client, Op.GET_ACL, wire.text("/x"))
    assert Reader(body).acl() == ((1, "world", "anyone"), (31, "digest", "joe:x"))


@pytest.mark.parametrize(
    ("acl", "address", "allowed"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/16", "10.1.2.3", False),
        ("::1", "::1", True),
        ("10.1.2.3", "10.1.2.3", True),
    ],
)
def test_ip_acl(acl: str, address: str, allowed: bool) -> None:
    entry = acls.fix(((acls.ALL, "ip", acl),), [])
    assert acls.allows(entry, Perm.READ, [("ip", address)]) is allowed


@pytest.mark.parametrize("identity", ["10.0.0.0/33", "10.0.0", "x", ""])
def test_invalid_ip_acl_is_refused(identity: str) -> None:
    with pytest.raises(acls.Refusal):
        acls.fix(((acls.ALL, "ip", identity),), [])


@pytest.mark.parametrize("path", ["/", "/a", "/a/b", "/a..b", "/...", "/a/..b", "/한국", "/a b"])
def test_good_paths(path: str) -> None:
    assert is_valid_path(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a",
        "/a/",
        "//",
        "/a//b",
        "/.",
        "/..",
        "/a/.",
        "/a/../b",
        "/\0",
        "/\x1f",
        "/\x7f",
        "/\ufffd",
        "/\U0001f600",
        "/a\n",
    ],
)
def test_bad_paths(path: str) -> None:
    assert not is_valid_path(path)
    driver = Driver()
    assert driver.write(driver.client(1), Op.CREATE, create(path)).err in (Err.BAD_ARGUMENTS, Err.NO_NODE)


def test_zookeepers_own_nodes_cannot_be_deleted() -> None:
    driver = Driver()
    client = driver.client(1)
    for path in ("/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"):
        assert driver.write(client, Op.DELETE, delete(path)).err == Err.BAD_ARGUMENTS


def test_reconfig_is_disabled() -> None:
    driver = Driver()
    assert driver.write(driver.client(1), Op.RECONFIG, b"").err == Err.RECONFIG_DISABLED


def test_get_ephemerals_and_all_children_number() -> None:
    driver = Driver()
    client = driver.client(1)
    for path, flags in (("/a", 0), ("/a/e1", 1), ("/e2", 1), ("/ab", 0)):
        driver.write(client, Op.CREATE, create(path, flags=flags))
    assert Reader(ask(driver, client, Op.GET_EPHEMERALS, wire.text("/"))[1]).texts() == ["/a/e1", "/e2"]
    assert Reader(ask(driver, client, Op.GET_EPHEMERALS, wire.text("/a"))[1]).texts() == ["/a/e1"]
    assert Reader(ask(driver, client, Op.GET_ALL_CHILDREN_NUMBER, wire.text("/a"))[1]).i32() == 1
    assert Reader(ask(driver, client, Op.GET_ALL_CHILDREN_NUMBER, wire.text("/"))[1]).i32() == 7


def test_reads_that_are_malformed_are_answered() -> None:
    driver = Driver()
    client = driver.client(1)
    for op in reads.READS - {Op.WHO_AM_I}:
        for body in (b"", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff/", b"\0\0\0\1"):
            assert ask(driver, client, op, body)[0] in (Err.MARSHALLING_ERROR, 0)


def test_check_of_its_own_is_answered_without_results_and_logged_so_that_zookeeper_can_read_it() -> None:
    driver = Driver()
    client = driver.client(1)
    written = driver.write(client, Op.CHECK, delete("/", 0))
    assert (written.err, written.body, written.txn.op) == (0, b"", Op.MULTI)
    assert driver.write(client, Op.CHECK, delete("/", 5)).err == Err.BAD_VERSION
