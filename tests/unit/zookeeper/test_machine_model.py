"""The machine compared with a model: a slower description of ZooKeeper's behaviour, driven by the same random operations."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from barnabas.zookeeper import reads, snapshot, txns, wire
from barnabas.zookeeper.machine import Machine
from barnabas.zookeeper.wire import Err, Event, Op, Reader
from tests.unit.zookeeper.zk_requests import (
    Driver,
    Stat,
    check,
    create,
    create_ttl,
    delete,
    image,
    multi,
    multi_results,
    set_data,
    stat,
)

NAMES = ("a", "b", "a/x", "a/y", "b/x", "a/x/1", "zookeeper", "c-")
PATHS = st.sampled_from(["/" + name for name in NAMES])
VERSIONS = st.sampled_from([-1, -1, -1, 0, 1, 2])
FLAGS = st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5, 9])
DATA = st.binary(max_size=3)


@dataclass
class ModelNode:
    data: bytes
    owner: int
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    version: int = 0
    #: Children ever created and ever deleted: the numbers that clients see are sums of these.
    created: int = 0
    deleted: int = 0


@dataclass
class Model:
    nodes: dict[str, ModelNode] = field(default_factory=dict)
    data_watches: set[tuple[int, str]] = field(default_factory=set)
    child_watches: set[tuple[int, str]] = field(default_factory=set)

    def copy(self) -> "Model":
        return Model({path: replace(node) for path, node in self.nodes.items()})

    def children(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        return [
            other
            for other in self.nodes
            if other.startswith(prefix) and other != "/" and "/" not in other[len(prefix) :]
        ]

    def stat(self, path: str) -> Stat:
        node = self.nodes[path]
        return Stat(
            node.czxid, node.mzxid, node.ctime, node.mtime, node.version, node.created + node.deleted, 0,
            max(node.owner, 0), len(node.data), len(self.children(path)), node.pzxid,
        )  # fmt: skip

    def create(
        self, path: str, data: bytes, flags: int, session: int, zxid: int, now: int, *, op: int
    ) -> tuple[Err, str]:
        if flags not in range(7) or flags in (5, 6) or (op == Op.CREATE_TTL):
            return Err.BAD_ARGUMENTS, path
        parent = path.rpartition("/")[0] or "/"
        if parent not in self.nodes:
            return Err.NO_NODE, path
        if flags in (2, 3):
            path = f"{path}{self.nodes[parent].created:010d}"
        if path in self.nodes:
            return Err.NODE_EXISTS, path
        if self.nodes[parent].owner > 0:
            return Err.NO_CHILDREN_FOR_EPHEMERALS, path
        owner = -1 if op == Op.CREATE_CONTAINER else session if flags in (1, 3) else 0
        self.nodes[path] = ModelNode(data, owner, zxid, zxid, zxid, now, now)
        self.nodes[parent].created += 1
        self.nodes[parent].pzxid = zxid
        return Err.OK, path

    def delete(self, path: str, version: int, zxid: int) -> Err:
        if path == "/zookeeper":
            return Err.BAD_ARGUMENTS
        parent = path.rpartition("/")[0] or "/"
        if path not in self.nodes:
            return Err.NO_NODE
        if version not in (-1, self.nodes[path].version):
            return Err.BAD_VERSION
        if self.children(path):
            return Err.NOT_EMPTY
        del self.nodes[path]
        self.nodes[parent].deleted += 1
        self.nodes[parent].pzxid = zxid
        return Err.OK

    def set_data(self, path: str, data: bytes, version: int, zxid: int, now: int) -> Err:
        node = self.nodes.get(path)
        if node is None:
            return Err.NO_NODE
        if version not in (-1, node.version):
            return Err.BAD_VERSION
        node.data, node.version, node.mzxid, node.mtime = data, node.version + 1, zxid, now
        return Err.OK

    def check(self, path: str, version: int) -> Err:
        if path not in self.nodes:
            return Err.NO_NODE
        return Err.OK if version in (-1, self.nodes[path].version) else Err.BAD_VERSION

    def close(self, session: int, zxid: int) -> list[str]:
        gone = [path for path, node in self.nodes.items() if node.owner == session]
        for path in gone:
            assert self.delete(path, -1, zxid) is Err.OK
        return gone

    # ---- notified clients -----------------------------------------------------------------------------------------------

    def _fire(self, watches: set[tuple[int, str]], path: str) -> set[int]:
        notified = {session for session, watched in watches if watched == path}
        watches.difference_update({(session, path) for session in notified})
        return notified

    def events_of(self, before: "Model") -> set[tuple[Event, str, int]]:
        """Compute the events of one transaction from the difference that it made."""
        out: set[tuple[Event, str, int]] = set()

        def tell(event: Event, path: str, sessions: set[int]) -> None:
            out.update((event, path, session) for session in sessions)

        for path in self.nodes.keys() - before.nodes.keys():
            tell(Event.CREATED, path, self._fire(self.data_watches, path))
        for path in before.nodes.keys() - self.nodes.keys():
            tell(Event.DELETED, path, self._fire(self.data_watches, path) | self._fire(self.child_watches, path))
        for path in self.nodes.keys() & before.nodes.keys():
            if self.nodes[path].version != before.nodes[path].version:
                tell(Event.DATA_CHANGED, path, self._fire(self.data_watches, path))
            if self.nodes[path].pzxid != before.nodes[path].pzxid:
                tell(Event.CHILDREN_CHANGED, path, self._fire(self.child_watches, path))
        return out


CREATES = (Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER)

OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(CREATES), PATHS, DATA, FLAGS),
    st.tuples(st.just(Op.DELETE), PATHS, VERSIONS),
    st.tuples(st.just(Op.SET_DATA), PATHS, DATA, VERSIONS),
    st.tuples(st.just(Op.CHECK), PATHS, VERSIONS),
)


class MachineAgainstModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.driver = Driver()
        self.model = Model()
        for path, node in self.driver.machine.tree.nodes.items():
            self.model.nodes[path] = ModelNode(b"", 0, 0, 0, 0, 0, 0)
            self.model.nodes[path].deleted = -len(node.children or ())
        self.next_session = 1
        self.clients = [self._new_client(), self._new_client()]
        self.snapshot: list[bytes] = []
        self.snapshot_zxid = 0
        self.slices = iter(())

    def _new_client(self):
        client = self.driver.client(self.next_session)
        self.next_session += 1
        return client

    def _apply_to_model(self, model: Model, session: int, operation, zxid: int, now: int) -> tuple[Err, str]:
        op, path, *rest = operation
        match op:
            case Op.CREATE | Op.CREATE2 | Op.CREATE_CONTAINER:
                return model.create(path, rest[0], rest[1], session, zxid, now, op=op)
            case Op.DELETE:
                return model.delete(path, rest[0], zxid), path
            case Op.SET_DATA:
                return model.set_data(path, rest[0], rest[1], zxid, now), path
            case _:
                return model.check(path, rest[0]), path

    @staticmethod
    def _encode(operation) -> bytes:
        op, path, *rest = operation
        if op in (Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER):
            return create(path, rest[0], flags=rest[1])
        if op == Op.SET_DATA:
            return set_data(path, rest[0], rest[1])
        return (delete if op == Op.DELETE else check)(path, rest[0])

    def _expect_events(self, before: Model, written) -> None:
        got = [(event.event, event.path, client.session_id) for event in written.events for client in event.clients]
        assert len(got) == len(set(got)), "each client is notified once"
        expected = self.model.events_of(before)
        # The two ends of a multi may cancel out in the difference; test_machine checks those events by hand.
        if written.txn.op == Op.MULTI:
            assert expected <= set(got)
            for event, path, session in set(got) - expected:
                self.model.data_watches.discard((session, path))
                self.model.child_watches.discard((session, path))
                assert event in Event
        else:
            assert set(got) == expected

    @rule(index=st.integers(0, 1), operation=OPERATIONS)
    def one_write(self, index: int, operation) -> None:
        client = self.clients[index]
        before = self.model.copy()
        written = self.driver.write(client, operation[0], self._encode(operation))
        zxid, now = written.header.zxid, written.header.time_ms
        err, path = self._apply_to_model(self.model, client.session_id, operation, zxid, now)
        assert Err(written.err) is err
        if err is Err.OK:
            match operation[0]:
                case Op.CREATE:
                    assert Reader(written.body).text() == path
                case Op.CREATE2 | Op.CREATE_CONTAINER:
                    assert written.body == wire.text(path) + self.driver.machine.tree.nodes[path].stat()
                case Op.SET_DATA:
                    assert stat(written.body) == self.model.stat(path)
        self._expect_events(before, written)

    @rule(index=st.integers(0, 1), operations=st.lists(OPERATIONS, max_size=5))
    def one_multi(self, index: int, operations) -> None:
        client = self.clients[index]
        written = self.driver.write(client, Op.MULTI, multi(*((o[0], self._encode(o)) for o in operations)))
        if any(operation[0] in CREATES and operation[3] > 4 for operation in operations):
            # Invalid flags: the rest of the request is not even read.
            assert (written.err, written.body, written.events) == (Err.MARSHALLING_ERROR, b"", [])
            return
        operations = [
            (Op.CREATE_CONTAINER, *operation[1:]) if operation[0] in CREATES and operation[3] == 4 else operation
            for operation in operations
        ]
        before = self.model.copy()
        trial = self.model.copy()
        expected: list[int] = []
        paths: list[str] = []
        for operation in operations:
            if any(expected):
                expected.append(Err.RUNTIME_INCONSISTENCY)
                continue
            err, path = self._apply_to_model(
                trial, client.session_id, operation, written.header.zxid, written.header.time_ms
            )
            expected.append(err)
            paths.append(path)
        results = multi_results(written.body)
        assert written.err == 0
        assert [err for _, err, _, _ in results] == expected
        if any(expected):
            assert all(op == Op.ERROR for op, _, _, _ in results)
        else:
            assert [path for _, _, path, _ in results if path] == [
                path
                for path, o in zip(paths, operations, strict=True)
                if o[0] not in (Op.DELETE, Op.SET_DATA, Op.CHECK)
            ]
            self.model.nodes = trial.nodes
        self._expect_events(before, written)

    @rule(index=st.integers(0, 1), path=PATHS, op=st.sampled_from([Op.GET_DATA, Op.EXISTS, Op.GET_CHILDREN2]))
    def read_and_watch(self, index: int, path: str, op: Op) -> None:
        client = self.clients[index]
        request = wire.text(path) + b"\1"
        err, body, events = reads.read(self.driver.machine.tree, client, op, Reader(request))
        assert not events
        there = path in self.model.nodes
        assert err == (Err.OK if there else Err.NO_NODE)
        if there:
            assert stat(body[-68:]) == self.model.stat(path)
        if there and op == Op.GET_DATA:
            assert Reader(body).buffer() == self.model.nodes[path].data
        if there and op == Op.GET_CHILDREN2:
            assert sorted(Reader(body).texts()) == sorted(p.rpartition("/")[2] for p in self.model.children(path))
        if op == Op.GET_CHILDREN2:
            if there:
                self.model.child_watches.add((client.session_id, path))
        elif there or op == Op.EXISTS:
            self.model.data_watches.add((client.session_id, path))

    @rule(index=st.integers(0, 1))
    def session_ends(self, index: int) -> None:
        client = self.clients[index]
        before = self.model.copy()
        written = self.driver.close(client)
        self.model.close(client.session_id, written.header.zxid)
        self._expect_events(before, written)
        self.driver.machine.tree.forget_client(client)
        for watches in (self.model.data_watches, self.model.child_watches):
            watches.difference_update({entry for entry in watches if entry[0] == client.session_id})
        self.clients[index] = self._new_client()

    @rule()
    def snapshot_begins(self) -> None:
        self.snapshot_zxid = self.driver.machine.last_zxid
        self.slices = snapshot.slices(self.driver.machine)
        self.snapshot = [next(self.slices)]

    @rule()
    def snapshot_goes_on(self) -> None:
        if self.snapshot and (piece := next(self.slices, None)):
            self.snapshot.append(piece)

    @invariant()
    def the_tree_is_the_models(self) -> None:
        if not hasattr(self, "model"):
            return
        tree = self.driver.machine.tree
        assert tree.nodes.keys() == self.model.nodes.keys()
        for path, node in tree.nodes.items():
            if not path.startswith("/zookeeper/"):
                model_stat = self.model.stat(path)
                assert stat(node.stat())._replace(aversion=0) == model_stat
                assert node.data == self.model.nodes[path].data
        assert tree.data_bytes == sum(len(path) + len(node.data or b"") for path, node in tree.nodes.items())

    def teardown(self) -> None:
        """After any operations, replaying the log, alone or over a fuzzy snapshot, gives the same state."""
        if not hasattr(self, "driver"):
            return
        log = [txns.decode(txns.encode(written.header, written.txn)) for written in self.driver.written]
        assert [(w.header, w.txn) for w in self.driver.written] == log
        expected = image(self.driver.machine)
        replayed = Machine(tick_ms=1000)
        for header, txn in log:
            replayed.replay(header, txn)
        assert image(replayed) == expected
        if self.snapshot:
            restored = self._load(self.snapshot + list(self.slices), self.snapshot_zxid)
            for header, txn in log:
                if header.zxid > self.snapshot_zxid:
                    restored.replay(header, txn)
            assert image(restored) == expected

    @staticmethod
    def _load(pieces: list[bytes], zxid: int) -> Machine:
        with TemporaryDirectory() as folder:
            writer = snapshot.SnapshotWriter(Path(folder), zxid)
            for piece in pieces:
                writer.write(piece)
            machine = Machine(tick_ms=1000)
            snapshot.load(writer.finish(), zxid, machine)
            return machine


MachineAgainstModel.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestMachineAgainstModel = MachineAgainstModel.TestCase


def test_ttl_flags_and_ttl_go_together_or_not_at_all() -> None:
    driver = Driver()
    client = driver.client(1)
    assert driver.write(client, Op.CREATE_TTL, create_ttl("/t", 500)).err == 0
    assert driver.write(client, Op.CREATE_TTL, create_ttl("/u", 0)).err == Err.BAD_ARGUMENTS
    assert driver.write(client, Op.CREATE_TTL, create_ttl("/u", 1 << 40)).err == Err.BAD_ARGUMENTS
    assert driver.write(client, Op.CREATE_TTL, create_ttl("/u", 500, flags=0)).err == Err.BAD_ARGUMENTS
    assert driver.write(client, Op.CREATE, create("/u", flags=5)).err == Err.BAD_ARGUMENTS
    assert list(driver.machine.tree.expired_candidates(now_ms=driver.now_ms + 400)) == []
    assert list(driver.machine.tree.expired_candidates(now_ms=driver.now_ms + 600)) == ["/t"]
