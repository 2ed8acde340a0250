"""The compiled loops beside Python's: the same files byte for byte, the same numbers, the same refusals."""

import io
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.unit.broker.storage.cleaner.cleaner_support import CONFIG, SETTINGS, CompactedLog
from tests.unit.broker.storage.cleaner.test_compaction_model import Run, rounds

np = pytest.importorskip("numpy")
pytest.importorskip("numba")

from barnabas.base.errors import Malformed  # noqa: E402
from barnabas.broker.storage.cleaner import compiled, engine, worker  # noqa: E402
from barnabas.broker.storage.cleaner.compiled import kernels, key_map  # noqa: E402
from barnabas.broker.storage.cleaner.compiled.key_map import CompiledDirtyMap, max_keys, max_slots  # noqa: E402
from barnabas.broker.storage.cleaner.dirty_map import DirtyMap  # noqa: E402
from barnabas.broker.storage.cleaner.engine import PYTHON, Engine, EngineChoice, KeyMap, load_compiled  # noqa: E402
from barnabas.broker.storage.cleaner.job import CleanJob, CleanStats  # noqa: E402
from barnabas.broker.storage.cleaner.settings import CleanerSettings  # noqa: E402
from barnabas.broker.storage.cleaner.transactions import TransactionTracker  # noqa: E402
from barnabas.wire.compression import Codec  # noqa: E402
from barnabas.wire.record_batch import (  # noqa: E402
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_SIZE,
    iter_batches,
)
from barnabas.wire.record_kernels import byte_array  # noqa: E402
from barnabas.wire.records import BatchBuilder  # noqa: E402

COMPILED = compiled.ready()


class Watched(Run):
    """Of every cleaning the numbers, and afterwards every file of the log."""

    def __init__(self, root: Path, engine: Engine) -> None:
        super().__init__(root)
        self.log.engine = engine  # type: ignore[misc] # of this log alone
        self.seen: list[object] = []

    def clean(self, cleaner_settings: CleanerSettings) -> None:
        self.log.last = None
        # A map that is full ends a pass where its own room ends, which is not the same for both.
        super().clean(replace(cleaner_settings, dedupe_buffer_size=SETTINGS.dedupe_buffer_size))
        if self.log.last is not None:
            self.seen.append((self.log.last.next_dirty_offset, numbers(self.log.last.stats)))
        self.seen.append(files(self.log.directory))


def numbers(stats: CleanStats) -> tuple[int, ...]:
    return (
        stats.bytes_read,
        stats.bytes_written,
        stats.records_read,
        stats.records_written,
        stats.invalid_records,
    )


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.*"))}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(rounds, min_size=2, max_size=6))
def test_both_engines_compact_any_log_to_the_same_bytes(
    script: list[tuple[list[tuple[object, ...]], tuple[object, ...], tuple[object, ...]]],
) -> None:
    seen = []
    for used in (PYTHON, COMPILED):
        with tempfile.TemporaryDirectory() as root:
            run = Watched(Path(root), used)
            for written, wait, clean in script:
                for step in (*written, wait, clean):
                    run.step(step)
            run.log.roll()
            run.clean(SETTINGS)
            seen.append(run.seen)
    assert seen[0] == seen[1]


# -- pieces: what one walk makes of them

pairs = st.lists(
    st.tuples(
        st.sampled_from([None, b"", b"a", b"b", b"key-1", b"key-2", b"k" * 30, b"k" * 31, b"k" * 70, b"l" * 9000]),
        st.one_of(st.none(), st.sampled_from([b"", b"v", b"v" * 50, b"v" * 70, b"w" * 200, b"w" * 9000])),
        st.sampled_from([0, 1, 70, -70, 2**40, -(2**40)]),
        st.sampled_from([(), (("h", b"1"),)]),
    ),
    min_size=1,
    max_size=8,
)
batches = st.tuples(pairs, st.sampled_from([Codec.NONE, Codec.NONE, Codec.NONE, *Codec]), st.integers(0, 3))
#: Which batch, where in its bytes, which value, and whether the CRC is that of what it has become.
damages = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 400), st.integers(0, 255), st.sampled_from([True, True, True, False])),
    max_size=2,
)


def made(script: list[tuple[list[tuple[bytes | None, bytes | None, int, tuple[()]]], Codec, int]]) -> list[bytearray]:
    found, offset = [], 0
    for pairs, codec, gap in script:
        builder = BatchBuilder(codec=codec, base_offset=offset)
        stamp = 1_700_000_000_000
        for key, value, step, headers in pairs:
            builder.append(key, value, timestamp=stamp, headers=headers)
            stamp += step
        found.append(bytearray(builder.build()))
        offset += len(pairs) + gap
    return found


def damaged(parts: list[bytearray], damage: list[tuple[int, int, int, bool]]) -> bytes:
    for number, at, value, sealed in damage:
        part = parts[number % len(parts)]
        part[at % len(part)] = value
        if sealed:
            part[CRC_AT:ATTRIBUTES_AT] = crc32c(part[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return b"".join(parts)


def outcome(work: Callable[[], object]) -> object:
    try:
        return work()
    except Malformed as error:
        return str(error)


def map_outcome(keys: KeyMap, piece: bytes) -> object:
    size = keys.index(piece)
    after = keys.index(piece)
    keys.close()
    return size, after, bytes(keys.flags), keys.latest_offset, keys.without_key, bytes(keys.flags_of_clean(piece))


@settings(max_examples=200)
@given(st.lists(batches, min_size=1, max_size=4), damages, st.integers(0, 70))
def test_any_bytes_are_read_or_refused_alike(script, damage, cut) -> None:
    piece = damaged(made(script), damage)
    piece = piece[: len(piece) - cut] if cut < len(piece) else piece
    # No piece is given that has not its first batch whole: `SegmentReader.feed` looks.
    headers = outcome(lambda: [header.size_bytes for _, header in iter_batches(piece)])
    if isinstance(headers, str) or not headers:
        return
    tracker = TransactionTracker
    python = outcome(lambda: map_outcome(DirtyMap(1 << 20, tracker(())), piece))
    assert outcome(lambda: map_outcome(CompiledDirtyMap(1 << 20, tracker(())), piece)) == python


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> CleanJob:
    """Of a log of one record."""
    log = CompactedLog(tmp_path_factory.mktemp("log"), CONFIG)
    log.put((b"a", b"1"))
    log.roll()
    made = log.job()
    assert made is not None
    log.log.close()
    return made


class Output:
    """The output of a filter; with indexes like those of `IndexBuilder`."""

    def __init__(self, interval_bytes: int) -> None:
        self.position = 0
        self.written = bytearray()
        self.added: list[tuple[int, int]] = []
        self.interval_bytes = interval_bytes
        self.next_entry_after = interval_bytes
        self.max_timestamp, self.offset_of_max = -1, 0
        self.indexes = self

    def write(self, data: bytes) -> None:
        self.written += data

    write_through = write

    def add(self, position: int, last_offset: int, max_timestamp: int) -> None:
        if max_timestamp > self.max_timestamp:
            self.max_timestamp, self.offset_of_max = max_timestamp, last_offset
        if position > self.next_entry_after:
            self.next_entry_after = position + self.interval_bytes
            self.added.append((position, last_offset))


@settings(max_examples=100)
@given(st.lists(batches, min_size=1, max_size=5), damages, st.data())
def test_any_flags_leave_the_same_of_a_piece(job: CleanJob, script, damage, draw) -> None:
    parts = made(script)
    for number, at, value, _ in damage:
        part = parts[number % len(parts)]
        damaged([part], [(0, HEADER_SIZE + at % (len(part) - HEADER_SIZE), value, True)])
    piece = b"".join(parts)
    keys = DirtyMap(1 << 20, TransactionTracker(()))
    # A piece that cannot be read is never filtered.
    assume(not isinstance(outcome(lambda: keys.index(piece)), str))
    count = len(keys.flags)
    flags = draw.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    job = replace(job, end_offset=draw.draw(st.integers(0, count + 3)), now_ms=1_700_000_000_000)

    def run(used: Engine) -> object:
        stats = CleanStats()
        batch_filter = used.batch_filter(job, TransactionTracker(()), stats)
        output = batch_filter.output = Output(draw_interval)  # type: ignore[assignment]
        taken = batch_filter.filter(piece, bytearray([9, *flags]), 1)
        known = (output.position, output.max_timestamp, output.offset_of_max, output.next_entry_after)
        return taken, bytes(output.written), known, output.added, numbers(stats)

    draw_interval = draw.draw(st.sampled_from([0, 100, 4096]))
    assert outcome(lambda: run(COMPILED)) == outcome(lambda: run(PYTHON))


def test_a_batch_whose_timestamps_are_at_the_end_of_time_is_pythons(job: CleanJob) -> None:
    """Kernels count in 64 bits, and would wrap round."""
    builder = BatchBuilder()
    for timestamp in (2**62 + 5, 2**62 + 1, 2**62 + 2):
        builder.append(b"k", b"v", timestamp=timestamp)
    piece = bytes(builder.build())
    results = []
    for used in (PYTHON, COMPILED):
        stats = CleanStats()
        batch_filter = used.batch_filter(job, TransactionTracker(()), stats)
        output = batch_filter.output = Output(4096)  # type: ignore[assignment]
        batch_filter.filter(piece, bytearray([0, 1, 1]))
        results.append((bytes(output.written), output.max_timestamp, numbers(stats)))
    assert results[0] == results[1]
    assert results[0][1:] == (2**62 + 2, (len(piece), 0, 3, 2, 0))


def test_records_that_were_fewer_when_their_flags_were_made_stop_the_cleaning(job: CleanJob) -> None:
    builder = BatchBuilder()
    builder.append(b"k", b"v", timestamp=0)
    batch_filter = COMPILED.batch_filter(job, TransactionTracker(()), CleanStats())
    batch_filter.output = Output(0)  # type: ignore[assignment]
    with pytest.raises(Malformed, match="has 1 records, but it had 0 in the first pass"):
        batch_filter.filter(bytes(builder.build()), bytearray())


# -- what they are made of


def test_siphash_is_siphash() -> None:
    """The first vectors of its authors (SipHash-2-4, 128 bits): key 00 to 0f, inputs 00 01 02 and so on."""
    seed = np.frombuffer(bytes(range(16)), dtype=np.uint64)
    for size, expected in (
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (8, "3b62a9ba6258f5610f83e264f31497b4"),
        (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
        (16, "6ee2a4ca67b054bbfd3315bf85230577"),
    ):
        low, high = kernels.siphash(byte_array(bytes(range(size))), 0, size, seed)
        assert (int(low).to_bytes(8, "little") + int(high).to_bytes(8, "little")).hex() == expected


@given(st.binary(max_size=100), st.integers(0, 20))
def test_crc_is_that_of_the_library(data: bytes, start: int) -> None:
    start = min(start, len(data))
    assert kernels.crc32c_of(byte_array(data), start, len(data)) == crc32c(data[start:])


def test_a_table_of_keys_stays_within_its_bytes_while_it_grows() -> None:
    buffer_bytes = 40_000
    keys = CompiledDirtyMap(buffer_bytes, TransactionTracker(()))
    taken = 0
    for first in range(0, 3000, 20):
        builder = BatchBuilder()
        for number in range(first, first + 20):
            # Every other key has been there before, and needs no room.
            builder.append(b"%d" % (number if number % 2 else 1), b"", timestamp=0)
        taken += keys.index(bytes(builder.build())) > 0
        slots = len(keys._keys)
        assert slots * 24 + len(keys.flags) <= buffer_bytes
    assert keys.is_full
    assert slots == max_slots(buffer_bytes - buffer_bytes // 4)
    assert max_keys(slots) - 10 <= len(keys) <= max_keys(slots), "full to the last batch that fits"
    assert 0 < taken < 150


def test_a_piece_is_taken_though_it_has_more_keys_than_there_is_room_for() -> None:
    builder = BatchBuilder()
    for number in range(5000):
        builder.append(b"%d" % number, b"", timestamp=0)
    piece = bytes(builder.build())
    keys = CompiledDirtyMap(1000, TransactionTracker(()))
    assert keys.index(piece) == len(piece)
    assert keys.index(piece) == 0 and keys.is_full
    keys.close()
    assert keys.flags == bytearray([1]) * 5000


def test_batches_that_inflate_to_much_are_taken_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_map, "INFLATED_BYTES", 3000)
    parts = []
    for number in range(9):
        builder = BatchBuilder(codec=Codec.ZSTD, base_offset=number * 3)
        for key in (b"a", b"b", b"%d" % number):
            builder.append(key, b"x" * 400, timestamp=0)
        parts.append(bytes(builder.build()))
    piece = b"".join(parts)
    python = map_outcome(DirtyMap(1 << 20, TransactionTracker(())), piece)
    assert map_outcome(CompiledDirtyMap(1 << 20, TransactionTracker(())), piece) == python
    assert python[2] == bytes([0, 0, 0] * 9 + [0, 0, 1] * 8 + [1, 1, 1])


def test_more_batches_than_the_table_has_rows_are_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_map, "BATCHES_MAX", 2)
    parts = made([([(b"a", b"%d" % number, 0, ())], Codec.NONE, 0) for number in range(3)])
    keys = CompiledDirtyMap(1 << 20, TransactionTracker(()))
    assert keys.index(b"".join(parts)) == len(parts[0]) * 2
    assert keys.index(bytes(parts[2])) == len(parts[2])
    keys.close()
    assert keys.flags == bytearray([0, 0, 1])


def kernel_signatures() -> dict[str, int]:
    return {
        name: len(found.signatures)
        for name, found in vars(kernels).items()
        if isinstance(found, Callable) and hasattr(found, "signatures")  # type: ignore[arg-type]
    }


def test_nothing_is_compiled_after_the_warm_up() -> None:
    script = """
import sys
from pathlib import Path
from barnabas.broker.storage.cleaner import compiled
from tests.unit.broker.storage.cleaner.cleaner_support import CompactedLog
from tests.unit.broker.storage.cleaner.test_engines_agree import kernel_signatures
from barnabas.wire.compression import Codec
before = kernel_signatures()
called = {"check_batches", "count_records", "read_keys", "insert", "count_missing", "move", "mark_last", "mark_missing"}
called |= {"pick_records", "judge_batches", "write_batches"}
assert {before[name] for name in called} == {1}, before
log = CompactedLog(Path(sys.argv[1]))
CompactedLog.engine = compiled.ready()
for number in range(3):
    for codec in (Codec.NONE, Codec.ZSTD):
        log.put((b"a", b"1" * 300), (b"b", None), (b"a", b"2" * 300), (b"c", b"1" * 300), codec=codec)
        log.put((b"a", b"3"), (b"%d" % number, b"3"), producer=(1, 0, 4 * number + 2 * bool(codec)), transactional=True)
        log.end_txn(1, 0, commit=bool(codec))
    log.roll()
    log.clean()
assert kernel_signatures() == before, (before, kernel_signatures())
"""
    with tempfile.TemporaryDirectory() as root:
        subprocess.run([sys.executable, "-c", script, root], check=True, timeout=100)


# -- which one is used


def test_a_worker_with_little_to_do_never_imports_numba() -> None:
    script = (
        "import sys; from barnabas.broker.storage.cleaner import worker;"
        "from barnabas.broker.storage.cleaner.engine import EngineChoice;"
        "EngineChoice(); assert not {'numba', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_compiled_loops_come_once_a_worker_has_had_enough_to_do(
    job: CleanJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "load_compiled", lambda: COMPILED)
    small = replace(job, first_dirty_offset=10, end_offset=40, segments=())
    choice = EngineChoice(worth=100)
    assert [choice.engine(small) for _ in range(5)] == [PYTHON, PYTHON, PYTHON, COMPILED, COMPILED]
    assert EngineChoice(worth=100).engine(replace(small, end_offset=110)) is COMPILED
    assert EngineChoice(worth=100).engine(replace(small, end_offset=109)) is PYTHON


def test_work_counts_the_clean_part_by_its_bytes(job: CleanJob) -> None:
    clean = job.segments[0]._replace(size_bytes=128 * 70, end_offset=10)
    job = replace(job, segments=(clean, clean._replace(end_offset=50)), first_dirty_offset=10, end_offset=50)
    assert engine.work_of(job) == 40 + 70 + 17


def test_without_numba_python_cleans(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'numba'", name="numba")

    monkeypatch.setattr(engine.importlib, "import_module", missing)
    with caplog.at_level(logging.INFO):
        assert load_compiled() is PYTHON
    assert "module numba is missing: `pip install barnabas[fast]` adds it" in caplog.text


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("cannot cache function")])
def test_numba_that_fails_fails_no_cleaning(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(compiled, "warm_up", fail)
    assert load_compiled() is PYTHON
    assert "the compiled loops cannot be loaded" in caplog.text
    assert str(error) in caplog.text


def test_without_a_place_to_keep_machine_code_python_cleans(tmp_path: Path) -> None:
    script = (
        "import logging; logging.basicConfig(); from barnabas.broker.storage.cleaner.engine import PYTHON, load_compiled;"
        "assert load_compiled() is PYTHON"
    )
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    unsafe = tmp_path / f"barnabas-numba-{os.getuid()}"
    unsafe.mkdir()
    unsafe.chmod(0o777)
    environment |= {"TMPDIR": str(tmp_path), "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True, timeout=60
    )
    assert "numba can write its cache neither" in done.stderr


def test_worker_cleans_with_the_chosen_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = CompactedLog(tmp_path)
    log.put((b"a", b"1"), (b"a", b"2"))
    log.roll()
    job = log.job()
    assert job is not None
    maps: list[KeyMap] = []

    def key_map(buffer_bytes: int, transactions: TransactionTracker) -> KeyMap:
        maps.append(CompiledDirtyMap(buffer_bytes, transactions))
        return maps[-1]

    monkeypatch.setattr(engine, "load_compiled", lambda: COMPILED._replace(key_map=key_map))
    monkeypatch.setattr(worker, "EngineChoice", lambda: EngineChoice(worth=3))
    reports = io.BytesIO()
    worker.serve(io.BytesIO(worker.frame(job.encode()) * 3), reports)
    assert len(maps) == 2, "the first job was not worth it"
    assert reports.getvalue().count(b'"records_written":1') == 3
