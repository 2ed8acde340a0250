"""The wire, byte by byte: order of answers and events, the handshake, operations that kazoo does not have."""

import struct

import pytest

from barnabas.zookeeper import wire
from barnabas.zookeeper.wire import Err, Event, Op, Reader
from tests.scenarios.zookeeper.zk_process import ZooKeeperProcess, four_letter_word
from tests.scenarios.zookeeper.zk_raw import RawClient, create, event, set_data, watched


@pytest.fixture
def raw(server: ZooKeeperProcess, root: str):
    with RawClient(server.port) as client:
        assert client.connect()
        client.root = root
        yield client


def test_pipelined_requests_are_answered_in_order_and_events_come_before_the_answer(raw: RawClient) -> None:
    path = raw.root + "/a"
    raw.request(Op.EXISTS, watched(path, True))
    raw.request(Op.CREATE, create(path))
    raw.request(Op.GET_DATA, watched(path, True))
    raw.request(Op.SET_DATA, set_data(path, b"x"))
    raw.request(Op.PING, xid=-2)
    raw.request(Op.GET_DATA, watched(path))
    replies = [raw.reply() for _ in range(8)]
    assert [reply.xid for reply in replies] == [1, -1, 2, 3, -1, 4, -2, 5]
    assert event(replies[1]) == (Event.CREATED, path)
    assert event(replies[4]) == (Event.DATA_CHANGED, path)
    assert replies[0].err == Err.NO_NODE
    assert Reader(replies[7].body).buffer() == b"x"
    assert replies[5].zxid == replies[2].zxid + 1


def test_another_client_hears_of_a_change_before_it_can_read_it(server: ZooKeeperProcess, raw: RawClient) -> None:
    path = raw.root + "/w"
    raw.call(Op.CREATE, create(path, b"0"))
    with RawClient(server.port) as watcher:
        assert watcher.connect()
        for number in range(1, 50):
            watcher.call(Op.GET_DATA, watched(path, True))
            raw.request(Op.SET_DATA, set_data(path, b"%d" % number))
            has_event = False
            while True:
                watcher.request(Op.GET_DATA, watched(path))
                reply = watcher.reply()
                if reply.xid == -1:
                    has_event = True
                    reply = watcher.reply()
                if Reader(reply.body).buffer() == b"%d" % number:
                    assert has_event, "the new value was seen before the event"
                    break
                assert not has_event, "the old value was seen after the event"
            assert raw.reply().err == 0


def test_timeouts_are_negotiated_within_the_limits(server: ZooKeeperProcess) -> None:
    for asked, given in ((1, 200), (5000, 5000), (10**9, 60_000)):
        with RawClient(server.port) as client:
            assert client.connect(timeout_ms=asked)
            assert client.timeout_ms == given


def test_old_clients_without_a_read_only_flag_get_none_back(server: ZooKeeperProcess) -> None:
    with RawClient(server.port) as client:
        assert client.connect(flag=b"")


def test_client_with_a_later_zxid_is_rejected(server: ZooKeeperProcess) -> None:
    with RawClient(server.port) as client, pytest.raises(ConnectionError):
        client.connect(seen=1 << 40)


def test_session_moves_to_a_new_connection_and_the_old_one_ends(server: ZooKeeperProcess, raw: RawClient) -> None:
    with RawClient(server.port) as second:
        assert second.connect(session_id=raw.session_id, password=raw.password)
        assert second.session_id == raw.session_id
        assert raw.is_closed()
        assert second.call(Op.EXISTS, watched("/")).err == 0


def test_wrong_password_ends_no_session(server: ZooKeeperProcess, raw: RawClient) -> None:
    with RawClient(server.port) as thief:
        assert not thief.connect(session_id=raw.session_id, password=b"x" * 16)
        assert thief.is_closed()
    assert raw.call(Op.EXISTS, watched("/")).err == 0


def test_persistent_recursive_watch_and_its_removal(raw: RawClient) -> None:
    path = raw.root + "/r"
    raw.call(Op.CREATE, create(path))
    assert raw.call(Op.ADD_WATCH, wire.text(path) + struct.pack(">i", 1)).body == bytes(4)
    for _ in range(2):
        raw.request(Op.CREATE, create(path + "/x"))
        raw.request(Op.DELETE, wire.text(path + "/x") + struct.pack(">i", -1))
        replies = [raw.reply() for _ in range(4)]
        assert event(replies[0]) == (Event.CREATED, path + "/x")
        assert event(replies[2]) == (Event.DELETED, path + "/x")
    assert raw.call(Op.REMOVE_WATCHES, wire.text(path) + struct.pack(">i", 3)).err == 0
    assert raw.call(Op.CREATE, create(path + "/x")).err == 0


def test_containers_ttls_and_the_rest(raw: RawClient) -> None:
    root = raw.root
    reply = raw.call(Op.CREATE_CONTAINER, create(root + "/c", flags=4))
    assert Reader(reply.body).text() == root + "/c"
    assert len(reply.body) == 4 + len(root) + 2 + 68
    assert raw.call(Op.CREATE_TTL, create(root + "/t", flags=5) + struct.pack(">q", 5000)).err == 0
    raw.call(Op.CREATE, create(root + "/e", flags=1))
    assert Reader(raw.call(Op.GET_EPHEMERALS, wire.text(root)).body).texts() == [root + "/e"]
    assert Reader(raw.call(Op.GET_ALL_CHILDREN_NUMBER, wire.text(root)).body).i32() == 3
    assert raw.call(Op.SYNC, wire.text("/x")).body == wire.text("/x")
    identity = Reader(raw.call(Op.WHO_AM_I).body)
    assert (identity.i32(), identity.text(), identity.text()) == (1, "ip", "127.0.0.1")
    multi = b"".join(
        struct.pack(">i?i", op, False, -1) + watched(path)
        for op, path in ((Op.GET_DATA, root), (Op.GET_CHILDREN, root + "/none"), (Op.GET_CHILDREN, root + "/c"))
    )
    results = Reader(raw.call(Op.MULTI_READ, multi + wire.MULTI_END).body)
    assert (results.i32(), results.boolean(), results.i32(), results.buffer()) == (Op.GET_DATA, False, 0, b"")


def test_close_is_answered_and_then_the_connection_ends(raw: RawClient) -> None:
    assert raw.call(Op.CLOSE_SESSION).err == 0
    assert raw.is_closed()


def test_operation_that_is_not_served_is_answered_and_then_the_connection_ends(raw: RawClient) -> None:
    assert raw.call(999).err == Err.UNIMPLEMENTED
    assert raw.is_closed()


WORDS = {
    "ruok": "imok",
    "isro": "rw",
    "conf": "tickTime=100",
    "cons": "sid=0x",
    "crst": "Connection stats reset.",
    "dirs": "datadir_size: ",
    "dump": "ephemeral nodes dump:",
    "envi": "zookeeper.version=3.8.4",
    "srst": "Server stats reset.",
    "srvr": "Mode: standalone",
    "stat": "Clients:",
    "wchs": "Total watches:",
    "wchc": "0x",
    "wchp": "/",
    "mntr": "zk_server_state\tstandalone",
}


@pytest.mark.parametrize("word", sorted(WORDS))
def test_four_letter_words(server: ZooKeeperProcess, raw: RawClient, word: str) -> None:
    raw.call(Op.EXISTS, watched("/watched", True))
    assert WORDS[word] in four_letter_word(server.port, word.encode())


def test_mntr_has_what_monitoring_looks_for(server: ZooKeeperProcess, raw: RawClient) -> None:
    def counts() -> dict[str, float]:
        values = dict(line.split("\t") for line in four_letter_word(server.port, b"mntr").splitlines())
        return {name: float(values[name]) for name in ("zk_znode_count", "zk_watch_count", "zk_ephemerals_count")} | {
            "outstanding": float(values["zk_outstanding_requests"]),
            "latency": float(values["zk_avg_latency"]),
        }

    before = counts()
    assert raw.call(Op.CREATE, create("/counted", flags=1)).err == 0
    raw.call(Op.EXISTS, watched("/not-there-to-be-counted", True))
    after = counts()
    for name in ("zk_znode_count", "zk_watch_count", "zk_ephemerals_count"):
        assert after[name] == before[name] + 1, name
    assert after["outstanding"] == 0 and 0 <= after["latency"] < 10_000
