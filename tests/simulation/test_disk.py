"""The simulated disk: it behaves like a real one until the power is cut, and then loses no more than a real one may."""

import errno
import struct
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.base.host.disk import Disk, write_fully
from barnabas.broker.storage.offset_index import OffsetIndex
from barnabas.testing.simulation.disk import SimDisk
from barnabas.testing.simulation.disk_files import CHANGES, PAGE_BYTES, SECTOR_BYTES, WRITE
from barnabas.testing.simulation.disk_life import Life

# -- compared with a real disk

NAMES = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "f", "f/a")
paths = st.sampled_from(NAMES)
slots = st.integers(0, 5)
sizes = st.integers(0, 3 * PAGE_BYTES)
positions = st.integers(0, 3 * PAGE_BYTES)
operations = st.one_of(
    st.tuples(
        st.just("open"), paths, st.sampled_from([{}, {"create": True}, {"exclusive": True}, {"read_only": True}])
    ),
    st.tuples(st.just("open"), paths, st.just({"create": True, "truncate": True})),
    st.tuples(st.just("close"), slots),
    st.tuples(st.just("pwrite"), slots, st.binary(max_size=50), st.integers(1, 200), positions),
    st.tuples(st.just("pread"), slots, sizes, positions),
    st.tuples(st.just("preadinto"), slots, sizes, positions),
    st.tuples(st.just("truncate"), slots, sizes),
    st.tuples(st.just("reserve"), slots, positions, st.integers(1, 5000)),
    st.tuples(st.just("length"), slots),
    st.tuples(st.just("fsync"), slots),
    st.tuples(st.just("store"), slots, st.integers(0, 2000), st.integers()),
    st.tuples(st.just("rename"), paths, paths),
    st.tuples(st.just("unlink"), paths),
    st.tuples(st.just("mkdir"), paths),
    st.tuples(st.just("makedirs"), paths),
    st.tuples(st.just("rmdir"), paths),
    st.tuples(st.just("rmtree"), paths),
    st.tuples(st.just("listdir"), st.sampled_from(["", *NAMES])),
    st.tuples(st.just("subdirs"), st.sampled_from(["", *NAMES])),
    st.tuples(st.just("exists"), paths),
    st.tuples(st.just("is_dir"), paths),
    st.tuples(st.just("read_file"), paths),
    st.tuples(st.just("replace_file"), paths, st.binary(max_size=50)),
    st.tuples(st.just("fsync_dir"), paths),
    st.tuples(st.just("lock"), paths),
)


class Driver:
    """Performs operations on one disk, and returns their results."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.disk = disk
        self.root = root
        self.fds: list[int] = []

    def do(self, name: str, *args: Any) -> object:
        try:
            return self._do(name, args)
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def _do(self, name: str, args: tuple[Any, ...]) -> object:
        disk = self.disk
        if isinstance(args[0], str):
            located = [f"{self.root}/{each}" if isinstance(each, str) else each for each in args]
            if name == "open" and disk.is_dir(located[0]):
                return "a directory"  # a real disk opens it for reading, which shipping code never does
            if name in ("open", "lock"):
                how = located[1] if name == "open" else {}
                self.fds.append(getattr(disk, name)(located[0], **how))
                return "opened"
            return getattr(disk, name)(*located)
        if not self.fds:
            return "nothing open"
        place = args[0] % len(self.fds)
        fd = self.fds[place]
        match name:
            case "close":
                del self.fds[place]
                return disk.close(fd)
            case "pwrite":
                return disk.pwrite(fd, args[1] * args[2], args[3])
            case "preadinto":
                buffer = bytearray(args[1])
                return disk.preadinto(fd, buffer, args[2]), bytes(buffer)
            case "store":
                return self._store(fd, args[1], args[2])
            case _:
                return getattr(disk, name)(fd, *args[1:])

    def _store(self, fd: int, position: int, value: int) -> object:
        length = self.disk.length(fd)
        if length < position + 8:
            return "too short"
        mapped = self.disk.map(fd, length, read_only=False)
        struct.pack_into(">q", mapped, position, value % (1 << 62))
        seen = bytes(mapped[:])
        self.disk.unmap(mapped)
        return seen

    def tree(self, path: str = "") -> dict[str, object]:
        found: dict[str, object] = {}
        for name in self.disk.listdir(f"{self.root}{path}"):
            child = f"{path}/{name}"
            if self.disk.is_dir(f"{self.root}{child}"):
                found[child] = None
                found |= self.tree(child)
            else:
                found[child] = self.disk.read_file(f"{self.root}{child}")
        return found


@settings(max_examples=100, deadline=None)
@given(st.lists(operations, max_size=50))
def test_simulated_disk_behaves_like_a_real_one(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as closing:
        real = Driver(Disk(), folder)
        closing.callback(lambda: [real.disk.close(fd) for fd in real.fds])
        life = SimDisk().life()
        life.makedirs("/sim")
        simulated = Driver(life, "/sim")
        for step in steps:
            expected, got = real.do(*step), simulated.do(*step)
            assert got == expected, f"{step}: {got} and not {expected}"
        assert simulated.tree() == real.tree()


def test_times_are_those_of_the_clock_it_is_given() -> None:
    now = 5_000_000
    disk = SimDisk(now_ns=lambda: now)
    life = disk.life()
    write(life, "/x", b"1")
    now = 9_000_000
    assert life.modified_ms("/x") == 5
    fd = life.open("/x")
    life.pwrite(fd, b"2", 1)
    assert life.modified_ns("/x") == 9_000_000
    life.set_modified_ns("/x", 7)
    assert life.modified_ns("/x") == 7


# -- power

SEEDS = range(200)


def write(life: Life, path: str, data: bytes, *, sync: bool = False) -> None:
    fd = life.open(path, create=True)
    write_fully(life, fd, data, 0)
    if sync:
        life.fsync(fd)
    life.close(fd)


def after_cut(seed: int, prepare: Callable[[Life], object], **kind: bool) -> dict[str, bytes]:
    disk = SimDisk(**kind)  # type: ignore[arg-type]
    prepare(disk.life())
    disk.power_cut(Random(seed))
    return disk.files()


def outcomes(prepare: Callable[[Life], object], **kind: bool) -> list[dict[str, bytes]]:
    return [after_cut(seed, prepare, **kind) for seed in SEEDS]


def test_synced_data_survives_later_writes() -> None:
    synced = bytes(range(1, 256)) * 70

    def prepare(life: Life) -> None:
        write(life, "/x", synced, sync=True)
        fd = life.open("/x")
        for at in range(0, 30_000, 3000):
            life.pwrite(fd, b"\xff" * 3000, len(synced) + at)

    found = [each["/x"] for each in outcomes(prepare)]
    assert all(each.startswith(synced) for each in found)
    assert len({len(each) for each in found}) > 5
    tails = [each[len(synced) :] for each in found]
    assert any(not each for each in tails), "all lost"
    assert any(each == b"\xff" * 30_000 for each in tails), "nothing lost"
    assert any(b"\0\xff" in each and b"\xff\0" in each for each in tails), "lost in the middle"


def test_a_page_is_torn_at_sectors_and_nowhere_else() -> None:
    def prepare(life: Life) -> None:
        write(life, "/x", b"a" * PAGE_BYTES, sync=True)
        write(life, "/x", b"b" * PAGE_BYTES)

    found = {each["/x"] for each in outcomes(prepare)}
    for each in found:
        sectors = [each[at : at + SECTOR_BYTES] for at in range(0, PAGE_BYTES, SECTOR_BYTES)]
        assert all(sector in (b"a" * SECTOR_BYTES, b"b" * SECTOR_BYTES) for sector in sectors)
    assert {b"a" * PAGE_BYTES, b"b" * PAGE_BYTES} < found


def test_a_length_without_its_data_reads_as_zeros() -> None:
    found = [
        each["/x"]
        for each in outcomes(lambda life: (write(life, "/x", b"", sync=True), write(life, "/x", b"y" * 9000)))
    ]
    assert any(len(each) == 9000 and not any(each) for each in found)


def test_a_truncation_and_later_writes_may_be_lost() -> None:
    def prepare(life: Life) -> None:
        write(life, "/x", b"a" * 3 * PAGE_BYTES, sync=True)
        fd = life.open("/x")
        life.truncate(fd, 100)
        life.pwrite(fd, b"b" * PAGE_BYTES, 100)

    found = {each["/x"] for each in outcomes(prepare)}
    assert all(each[:100] == b"a" * 100 for each in found)
    assert b"a" * 3 * PAGE_BYTES in found, "nothing of it happened"
    assert b"a" * 100 + b"b" * PAGE_BYTES in found, "all of it happened"
    assert any(b"b" in each and each.endswith(b"a") for each in found), "the new beside the old"


def test_data_truncated_before_any_sync_may_come_back() -> None:
    def prepare(life: Life) -> None:
        fd = life.open("/x", create=True)
        life.fsync(fd)
        life.pwrite(fd, b"old" * PAGE_BYTES, 0)
        life.truncate(fd, 0)
        life.pwrite(fd, b"new", 0)

    assert any(b"old" in each["/x"] for each in outcomes(prepare))


def test_stores_through_a_map_are_durable_after_a_sync_and_in_doubt_before() -> None:
    def prepare(life: Life) -> None:
        fd = life.open("/x", create=True)
        life.reserve(fd, 0, 2 * PAGE_BYTES)
        mapped = life.map(fd, 2 * PAGE_BYTES, read_only=False)
        struct.pack_into(">q", mapped, 0, 7)
        life.fsync(fd)
        struct.pack_into(">q", mapped, 8, 8)
        struct.pack_into(">q", mapped, PAGE_BYTES, 9)

    found = {
        struct.unpack_from(">qq", each["/x"]) + struct.unpack_from(">q", each["/x"], PAGE_BYTES)
        for each in outcomes(prepare)
    }
    assert found == {(7, 0, 0), (7, 8, 0), (7, 0, 9), (7, 8, 9)}


def test_names_are_in_doubt_until_their_directory_is_synced() -> None:
    def prepare(life: Life) -> None:
        write(life, "/kept", b"1")
        write(life, "/gone", b"2")
        life.fsync_dir("/")
        life.unlink("/gone")
        life.rename("/kept", "/moved")
        life.mkdir("/d")

    def names(life: Life) -> list[str]:
        return life.listdir("/")

    seen = set()
    for seed in SEEDS:
        disk = SimDisk()
        prepare(disk.life())
        disk.power_cut(Random(seed))
        seen.add(tuple(names(disk.life())))
    renamed = [("kept",), ("moved",)]
    expected = {
        tuple(sorted((*one, *two, *three))) for one in renamed for two in [(), ("gone",)] for three in [(), ("d",)]
    }
    assert seen == expected


def test_a_journal_keeps_changes_of_names_in_their_order() -> None:
    def prepare(life: Life) -> None:
        for number in range(4):
            write(life, f"/{number}", b"")

    seen = {tuple(each) for each in outcomes(prepare, journaled=True)}
    assert seen == {tuple(f"/{number}" for number in range(count)) for count in range(5)}


def test_a_journal_is_written_whole_with_any_sync() -> None:
    def prepare(life: Life) -> None:
        write(life, "/x", b"a" * 3 * PAGE_BYTES, sync=True)
        fd = life.open("/x")
        life.truncate(fd, 100)
        life.mkdir("/d")
        write(life, "/other", b"", sync=True)
        life.pwrite(fd, b"b" * PAGE_BYTES, 100)

    for seed in SEEDS:
        disk = SimDisk(journaled=True)
        prepare(disk.life())
        disk.power_cut(Random(seed))
        assert disk.life().is_dir("/d")
        found = disk.files()["/x"]
        assert found[:100] == b"a" * 100 and b"a" not in found[100:]


def test_a_journal_that_loses_a_truncation_loses_later_changes() -> None:
    def prepare(life: Life) -> None:
        write(life, "/x", b"a" * 3 * PAGE_BYTES, sync=True)
        fd = life.open("/x")
        life.truncate(fd, PAGE_BYTES)
        life.pwrite(fd, b"b" * PAGE_BYTES, PAGE_BYTES)

    found = {each["/x"] for each in outcomes(prepare, journaled=True)}
    assert b"a" * 3 * PAGE_BYTES in found
    assert not any(b"a" in each and b"b" in each and each.endswith(b"a") for each in found)


@pytest.mark.parametrize("like_ext4", [True, False])
def test_an_fsync_of_a_new_file_makes_its_name_durable_on_a_disk_like_ext4(like_ext4: bool) -> None:
    def prepare(life: Life) -> None:
        life.makedirs("/a/b")
        write(life, "/a/b/x", b"1", sync=True)

    found = outcomes(prepare, fsync_makes_name_durable=like_ext4)
    assert all("/a/b/x" in each for each in found) == like_ext4
    assert any("/a/b/x" in each for each in found)


def test_a_rename_replaces_a_file_atomically() -> None:
    def prepare(life: Life) -> None:
        life.replace_file("/x", b"old" * 2000)
        life.replace_file("/x", b"new" * 3000)

    assert all(each == {"/x": b"new" * 3000} for each in outcomes(prepare))

    def without_sync(life: Life) -> None:
        life.replace_file("/x", b"old" * 2000)
        life.replace_file("/x", b"new" * 3000, sync=False)

    found = [each["/x"] for each in outcomes(without_sync)]
    assert b"old" * 2000 in found and b"new" * 3000 in found
    assert any(each not in (b"old" * 2000, b"new" * 3000) for each in found)


def test_a_replacement_that_is_durable_is_not_undone_by_one_before_it() -> None:
    def prepare(life: Life) -> None:
        for number in range(3):
            life.replace_file("/x", b"%d" % number, sync=False)
        life.fsync_path("/x")

    assert all(each["/x"] == b"2" for each in outcomes(prepare))
    assert all(each["/x"] == b"2" for each in outcomes(lambda life: (prepare(life), life.fsync_dir("/"))))


def test_the_same_seed_loses_the_same() -> None:
    def prepare(life: Life) -> None:
        for number in range(10):
            write(life, f"/{number}", b"x" * number * 3000, sync=number % 3 == 0)

    assert [after_cut(seed, prepare) for seed in range(20)] == [after_cut(seed, prepare) for seed in range(20)]


def test_written_back_data_is_durable() -> None:
    def prepare(life: Life) -> None:
        life.mkdir("/d")
        write(life, "/d/x", b"1" * 9000)
        life._disk.write_back()

    assert all(each == {"/d/x": b"1" * 9000} for each in outcomes(prepare))


# -- processes


def test_a_process_that_dies_leaves_the_page_cache_and_nothing_else() -> None:
    disk = SimDisk()
    life = disk.life()
    fd = life.lock("/lock")
    write(life, "/x", b"1" * 100)
    opened = life.open("/x")
    mapped = life.map(opened, 100, read_only=False)
    with pytest.raises(BlockingIOError):
        disk.life().lock("/lock")
    disk.process_died(life)
    struct.pack_into(">q", mapped, 0, 99)
    for late in (
        lambda: life.pwrite(opened, b"late", 0),
        lambda: life.fsync(opened),
        lambda: life.unlink("/x"),
        lambda: life.open("/y", create=True),
        lambda: life.exists("/x"),
        lambda: life.replace_file("/x", b"late"),
    ):
        with pytest.raises(OSError) as raised:
            late()
        assert raised.value.errno == errno.ESHUTDOWN
    life.close(fd)
    life.unmap(mapped)
    assert disk.files() == {"/lock": b"", "/x": b"1" * 100}
    disk.life().lock("/lock")


def test_a_power_cut_ends_every_process_of_the_machine() -> None:
    disk = SimDisk()
    one, two = disk.life(), disk.life()
    two.lock("/lock")
    disk.power_cut(Random(0))
    for life in (one, two):
        with pytest.raises(OSError):
            life.mkdir("/d")
    disk.life().lock("/lock")


def test_an_index_is_trimmed_grown_and_read_through_its_map() -> None:
    disk = SimDisk()
    life = disk.life()
    index = OffsetIndex("/x.index", 0, max_index_bytes=8 * 1000, disk=life)
    for number in range(600):
        index.append(number * 2, number * 100)
    assert index.lookup(301) == (300, 15000)
    index.truncate_to(500)
    index.append(501, 1)
    index.close()
    assert life.size("/x.index") == 251 * 8
    again = OffsetIndex("/x.index", 0, disk=life)
    assert (again.entries, again.last_offset) == (251, 501)
    again.preallocate()
    again.append(502, 2)
    again.release()
    assert life.open_count == 0


def test_an_empty_index_of_the_usual_size_takes_no_memory_and_no_time() -> None:
    disk = SimDisk()
    life = disk.life()
    for number in range(300):  # 3 GB if they were filled
        OffsetIndex(f"/{number}.index", 0, disk=life).append(5, 5)


# -- residency


def test_after_a_power_cut_files_are_read_from_the_disk_first() -> None:
    disk = SimDisk()
    write(disk.life(), "/x", b"123", sync=True)
    disk.power_cut(Random(1))
    life = disk.life()
    fd = life.open("/x", read_only=True)
    assert not life.is_resident(fd, 0, 3)
    with pytest.raises(BlockingIOError):
        life.read_now(fd, bytearray(3), 0)
    life.load(fd, 0, 3)
    buffer = bytearray(5)
    assert life.is_resident(fd, 0, 3) and life.read_now(fd, buffer, 1) == 2 and buffer[:2] == b"23"
    disk.evict("/x")
    assert not life.is_resident(fd, 0, 3)


class Socket:
    def __init__(self) -> None:
        self.received = b""

    def send(self, data: bytes) -> int:
        self.received += data[:4]
        return len(data[:4])


def test_a_range_is_sent_as_far_as_the_socket_takes_it() -> None:
    life = SimDisk().life()
    write(life, "/x", b"0123456789")
    sock: Any = Socket()
    fd = life.open("/x")
    assert life.sendfile(sock, fd, 3, 100) == 4 and sock.received == b"3456"
    assert life.sendfile(sock, fd, 10, 100) == 0


# -- faults


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    life = disk.life()
    for root in ("/one", "/one-more", "/two"):
        life.mkdir(root)
        write(life, f"{root}/x", b"0123456789", sync=True)
    return disk


def code(do: Callable[..., object], *args: object) -> str | None:
    try:
        do(*args)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return None


def test_a_dead_directory_fails_every_process_until_it_is_healed(disk: SimDisk) -> None:
    life = disk.life()
    fd = life.open("/one/x")
    disk.fail("/one")
    assert code(life.pwrite, fd, b"y", 0) == code(life.pread, fd, 1, 0) == code(life.fsync, fd) == "EIO"
    for _ in range(2):
        disk.power_cut(Random(1))
        life = disk.life()
        assert code(life.open, "/one/x") == "EIO"
        assert code(life.listdir, "/one") == "EIO"
        assert code(life.makedirs, "/one") == "EIO"
        assert code(life.rename, "/one/x", "/one/y") == "EIO"
        assert not life.exists("/one/x") and not life.is_dir("/one")
    assert life.read_file("/two/x") == life.read_file("/one-more/x") == b"0123456789"
    disk.heal("/one")
    assert life.read_file("/one/x") == b"0123456789"


def test_writes_fail_and_reads_do_not(disk: SimDisk) -> None:
    life = disk.life()
    fd = life.open("/one/x")
    disk.fail_writes("/one")
    assert code(life.pwrite, fd, b"y", 0) == "EIO"
    assert code(life.truncate, fd, 0) == "EIO"
    assert code(life.unlink, "/one/x") == "EIO"
    assert code(life.replace_file, "/one/x", b"") == "EIO"
    assert life.read_file("/one/x") == b"0123456789"


def test_reads_fail_and_writes_do_not(disk: SimDisk) -> None:
    life = disk.life()
    fd = life.open("/one/x")
    disk.fail_reads("/one")
    assert code(life.pread, fd, 1, 0) == "EIO"
    assert life.pwrite(fd, b"y", 0) == 1


def test_a_full_disk_accepts_writes_that_fit_or_need_no_space(disk: SimDisk) -> None:
    life = disk.life()
    fd = life.open("/one/x")
    disk.fill("/one", after_bytes=5)
    assert life.pwrite(fd, b"abc", 10) == 3
    assert life.pwrite(fd, b"defg", 13) == 2
    assert code(life.pwrite, fd, b"fg", 15) == "ENOSPC"
    assert code(life.reserve, fd, 15, 10) == "ENOSPC"
    assert life.pwrite(fd, b"ABC", 0) == 3
    assert life.read_file("/one/x") == b"ABC3456789abcde"
    assert life.space_bytes("/one")[1] == 0 < life.space_bytes("/two")[1]


def test_write_fully_completes_short_writes(disk: SimDisk) -> None:
    life = disk.life()
    disk.shorten_writes("/one", to_bytes=3)
    fd = life.open("/one/x")
    assert life.pwrite(fd, b"abcdef", 0) == 3
    write_fully(life, fd, b"ABCDEFGH", 1)
    assert life.read_file("/one/x") == b"aABCDEFGH9"


def test_a_read_only_file_system_refuses_changes(disk: SimDisk) -> None:
    life = disk.life()
    disk.make_read_only("/one")
    assert code(life.open, "/one/x") == "EROFS"
    assert code(life.mkdir, "/one/d") == "EROFS"
    assert code(life.unlink, "/one/x") == "EROFS"
    assert life.read_file("/one/x") == b"0123456789"


def test_pages_of_a_failed_sync_are_not_written_by_the_next_one() -> None:
    found = set()
    for seed in SEEDS:
        copy = SimDisk()
        again = copy.life()
        write(again, "/x", b"0123456789", sync=True)
        fd = again.open("/x")
        again.pwrite(fd, b"lost", 0)
        copy.fail("/", CHANGES - {WRITE})
        assert code(again.fsync, fd) == "EIO"
        copy.heal()
        again.fsync(fd)
        copy.power_cut(Random(seed))
        found.add(copy.files()["/x"])
    assert found == {b"0123456789", b"lost456789"}


def test_each_operation_has_its_cost(disk: SimDisk) -> None:
    costs: list[tuple[str, int]] = []
    disk.on_cost = lambda kind, size: costs.append((kind, size))
    life = disk.life()
    fd = life.open("/two/y", create=True)
    life.pwrite(fd, b"x" * 5000, 0)
    life.pread(fd, 100, 0)
    life.fsync(fd)
    life.unlink("/two/y")
    assert costs == [("look", 0), ("name", 0), ("write", 5000), ("read", 100), ("sync", 8192), ("name", 0)]
    costs.clear()
    assert Path("/two").exists() is False, "no real file is touched"


def test_reads_report_their_bytes(disk: SimDisk) -> None:
    life = disk.life()
    write(life, "/x", b"x" * 5000)
    got: list[int] = []
    disk.on_read = got.append
    assert life.read_file("/x") == b"x" * 5000
    assert got == [5000, 0], "the second read begins at the end"


def test_process_without_descriptors_opens_and_maps_nothing_and_syncs_no_directory(disk: SimDisk) -> None:
    life = disk.life()
    write(life, "/x", b"x")
    life.descriptors_left = 2
    fd = life.open("/x")
    life.unmap(life.map(fd, 1, read_only=True))
    for call in (lambda: life.open("/x"), lambda: life.open("/new", create=True), lambda: life.fsync_dir("/")):
        assert code(call) == "EMFILE"
    assert code(lambda: life.map(fd, 1, read_only=True)) == "EMFILE"
    assert not life.exists("/new")
    assert life.pread(fd, 1, 0) == b"x", "open files stay open"
    life.descriptors_left = None
    life.close(life.open("/x"))
