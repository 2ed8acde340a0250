"""`python -m tests.fuzz.tier [--seconds 300] [--seed 7]`: wrong objects in the tier, under the reader of a broker.

Objects are cut, longer, missing, damaged, another segment's, in part another segment's, with batches in another order, or
junk. It prints its findings and then exits with 1: an error other than `StoreFault`, a gap, or a wrong record, timestamp or
start state. One log in four has segments without checksums of blocks, as earlier versions copied them. It spares these what
only such checksums notice: a base offset that stays within its segment, whole batches in another order, and parts of another
segment.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import psutil

from barnabas.base.errors import Malformed
from barnabas.broker.features.tiered import layout
from barnabas.broker.features.tiered.lineage import pieces
from barnabas.broker.features.tiered.segment_metadata import RemoteSegment
from barnabas.broker.features.tiered.store import StoreFault
from barnabas.wire.record_batch import check_crc, iter_batches
from barnabas.wire.records import Record, iter_records
from tests.unit.broker.features.tiered.tier_support import Tier
from tests.unit.broker.storage.log.log_support import NOW_MS, batch, contents

#: Number of wrong objects under one log.
_ROUNDS: Final = 300
_GROWTH_BYTES_MAX: Final = 200_000_000
_BASE_OFFSET_BYTES: Final = 8


class Wrongs:
    """Ways in which an object differs from the one that was put."""

    def __init__(self, chance: random.Random, tier: Tier, segments: list[RemoteSegment], *, has_blocks: bool) -> None:
        self._chance = chance
        self._has_blocks = has_blocks
        self._good = dict(tier.store.objects)
        self._suffixes = {layout.LOG: layout.log_key, layout.INDEXES: layout.indexes_key}
        self._keys = {suffix: [key_of(segment) for segment in segments] for suffix, key_of in self._suffixes.items()}
        self.kinds: dict[str, Callable[[str, str], bytes | None]] = {
            "cut": lambda key, suffix: self._good[key][: chance.randrange(len(self._good[key]))],
            "longer": lambda key, suffix: self._good[key] + chance.randbytes(chance.randrange(1, 500)),
            "missing": lambda key, suffix: None,
            "zeros": lambda key, suffix: bytes(len(self._good[key])),
            "junk": lambda key, suffix: chance.randbytes(chance.choice((1, len(self._good[key])))),
            "another segment's": lambda key, suffix: self._good[chance.choice(self._keys[suffix])],
            "mixed with another segment's": self._mixed,
            "moved": self._moved,
            "flipped": self._flipped,
        }
        if has_blocks:
            self.kinds |= {"shuffled": self._shuffled, "with another's batch": self._with_anothers_batch}

    def wrong(self, objects: dict[str, bytes]) -> str:
        """Make one object wrong, and return the name of the change."""
        suffix = self._chance.choice((layout.LOG, layout.LOG, layout.INDEXES))
        key, kind = self._chance.choice(self._keys[suffix]), self._chance.choice(list(self.kinds))
        data = self.kinds[kind](key, suffix)
        if data is None:
            del objects[key]
        else:
            objects[key] = data
        return f"{kind}{suffix}"

    def mend(self, objects: dict[str, bytes]) -> None:
        objects.clear()
        objects.update(self._good)

    def _mixed(self, key: str, suffix: str) -> bytes:
        if suffix == layout.LOG and not self._has_blocks:
            return self._flipped(key, suffix)
        one, other = self._good[key], self._good[self._chance.choice(self._keys[suffix])]
        at = self._chance.randrange(len(one))
        return (one[:at] + other[at:] + one[len(other) :])[: len(one)]

    def _moved(self, key: str, suffix: str) -> bytes:
        data = self._good[key]
        is_spared = suffix == layout.LOG and not self._has_blocks
        whole = {position for position, _ in iter_batches(data)} if is_spared else {0}
        at = self._chance.choice([at for at in range(len(data)) if at not in whole])
        return data[at:] + data[:at]

    def _shuffled(self, key: str, suffix: str) -> bytes:
        """Put intact batches in another order."""
        if suffix != layout.LOG:
            return self._moved(key, suffix)
        batches = _batches(self._good[key])
        if len(batches) < 2:
            return self._flipped(key, suffix)
        one, other = sorted(self._chance.sample(range(len(batches)), 2))
        batches[one], batches[other] = batches[other], batches[one]
        return b"".join(batches)

    def _with_anothers_batch(self, key: str, suffix: str) -> bytes:
        """Replace an intact batch with another segment's."""
        if suffix != layout.LOG:
            return self._mixed(key, suffix)
        batches = _batches(self._good[key])
        others = _batches(self._good[self._chance.choice([each for each in self._keys[suffix] if each != key])])
        batches[self._chance.randrange(len(batches))] = self._chance.choice(others)
        return b"".join(batches)

    def _flipped(self, key: str, suffix: str) -> bytes:
        data = bytearray(self._good[key])
        uncovered: set[int] = set()
        if suffix == layout.LOG and not self._has_blocks:
            starts = [position for position, _ in iter_batches(bytes(data))]
            uncovered = {start + at for start in starts for at in range(_BASE_OFFSET_BYTES)}
        covered = [at for at in range(len(data)) if at not in uncovered]
        for _ in range(self._chance.choice((1, 1, 3, 40))):
            data[self._chance.choice(covered)] ^= 1 << self._chance.randrange(8)
        return bytes(data)


def _batches(data: bytes) -> list[bytes]:
    starts = [position for position, _ in iter_batches(data)]
    return [data[start:end] for start, end in pairwise([*starts, len(data)])]


class Damaged(Exception):
    """A checksum of the records is wrong, which consumers notice."""


class Right:
    """Answers of an intact tier other than records."""

    def __init__(self, tier: Tier, segments: list[RemoteSegment]) -> None:
        self._tier = tier
        self._segments = segments
        #: By what was asked, and a number.
        self.answers: dict[tuple[str, int], object] = {}

    async def remember(self, end: int, *, has_blocks: bool) -> None:
        # Without checksums of blocks a batch with a damaged header is passed over: a look-up reads no more of it.
        wanted = [("timestamp", NOW_MS + offset) for offset in range(end if has_blocks else 0)]
        wanted += [("aborted", offset) for offset in range(0, end, 10)]
        wanted += [("start", number) for number in range(len(self._segments))]
        self.answers = {each: await self._ask(*each) for each in wanted}

    async def check(self, what: tuple[str, int]) -> None:
        found = await self._ask(*what)
        assert found == self.answers[what], f"{what}: {found} instead of {self.answers[what]}"

    def _ask(self, what: str, number: int) -> Awaitable[object]:
        reader, view = self._tier.reader, self._tier.view
        if what == "timestamp":
            return reader.offset_for_timestamp(view, number)
        if what == "aborted":
            return reader.aborted_transactions(view, number, number + 20)
        return reader.start_after(self._segments[number], log_start_offset=0)


class Attack:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.found: list[str] = []

    async def on_one_log(self, folder: Path, ends_s: float) -> None:
        chance = self.chance
        has_blocks = chance.random() < 0.75
        tier = Tier(
            folder,
            chunk_bytes=chance.choice((100, 256, 1_000, 1 << 20)),
            block_bytes=chance.choice((7, 64, 100, 1 << 16)) if has_blocks else None,
        )
        size = chance.choice((0, 30, 60, 200))
        for number in range(chance.randrange(60, 120)):
            values = [b"%d" % number + b"x" * size] * chance.choice((1, 1, 1, 3))
            tier.log.append_as_leader(
                batch(values, timestamp=NOW_MS + number), leader_epoch=number // 40, now_ms=NOW_MS
            )
        tier.partition.commit()
        wanted = {entry.offset: entry.value for entry in contents(tier.log)}
        await tier.copy()
        end = tier.log.local_log_start_offset
        segments = [piece.segment for piece in pieces(tier.segments, tier.log.epochs, 0, end)]
        wrongs = Wrongs(chance, tier, segments, has_blocks=has_blocks)
        right = Right(tier, segments)
        await right.remember(end, has_blocks=has_blocks)
        for _ in range(_ROUNDS):
            if time.monotonic() > ends_s or len(self.found) > 20:
                break
            what = wrongs.wrong(tier.store.objects)
            if chance.random() < 0.2:
                what = f"{what} and {wrongs.wrong(tier.store.objects)}"
            self.done[what.partition(" and ")[0]] += 1
            await self._look(what, tier, right, wanted, end)
            wrongs.mend(tier.store.objects)
            for segment in segments:
                with contextlib.suppress(StoreFault):
                    tier.copies.forget(await tier.copies.open(segment))
        await self._judged("nothing", self._read(tier, 0, end, wanted), refuses=False)
        await tier.settled()

    async def _look(self, what: str, tier: Tier, right: "Right", wanted: dict[int, bytes | None], end: int) -> None:
        for offset in sorted(self.chance.sample(range(end), 4)):
            await self._judged(what, self._read(tier, offset, end, wanted))
        await self._judged(what, right.check(self.chance.choice(list(right.answers))))

    async def _judged(self, what: str, work: object, *, refuses: bool = True) -> None:
        try:
            await work  # type: ignore[misc]
        except (StoreFault, Damaged) as error:
            if not refuses:
                self.found.append(f"mended, and still refused: {error}")
        except Exception as error:
            self.found.append(f"{what}: {error!r}")

    async def _read(self, tier: Tier, offset: int, end: int, wanted: dict[int, bytes | None]) -> None:
        """Read from `offset` on as a consumer does, which checks checksums."""
        while offset < end:
            result = await tier.reader.read(
                tier.view, offset, max_bytes=self.chance.choice((1, 300, 2_000)), max_offset=end
            )
            data = result.read()
            assert data, f"nothing at {offset}"
            for record in _decoded(data):
                if record.offset < offset:
                    continue
                assert record.offset == offset, f"offset {record.offset} where {offset} was due"
                assert record.value == wanted[offset], f"another record at {offset}"
                offset += 1
                if offset == end:
                    return


def _decoded(data: bytes) -> Iterator[Record]:
    try:
        for position, header in iter_batches(data):
            check_crc(data, position, header)
            yield from iter_records(data, position, header)
    except Malformed as error:
        raise Damaged from error


async def main(seconds: float, seed: int) -> int:
    attack = Attack(seed)
    process = psutil.Process()
    before = process.memory_info().rss
    ends_s = time.monotonic() + seconds
    logs = 0
    while time.monotonic() < ends_s and len(attack.found) <= 20:
        with tempfile.TemporaryDirectory() as folder:
            await attack.on_one_log(Path(folder) / "log", ends_s)
        logs += 1
    grown = process.memory_info().rss - before
    if grown > _GROWTH_BYTES_MAX:
        attack.found.append(f"grown by {grown:,} bytes")
    print(
        f"seed {seed}: {logs} logs, {sum(attack.done.values())} wrong objects, {dict(attack.done)}; "
        f"grown by {grown / 1e6:.0f} MB"
    )
    for each in attack.found[:20]:
        print(f"FOUND: {each}")
    return 1 if attack.found else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sys.exit(asyncio.run(main(options.seconds, options.seed)))
