"""`python -m tests.fuzz.tier [--seconds 300] [--seed 7]`: objects of the tier that are wrong, under the reader of a broker.

Objects are cut, longer, missing, damaged, those of another segment, or junk. Exits with 1 and what was found: a failure other
than `StoreFault`, a gap, or another record than was written. Damage that no checksum covers is left out: a base offset that
stays within its segment, whole batches in another order, and records of which a part is another segment's.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
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

#: Wrong objects under one log, before the next log is made.
_ROUNDS: Final = 300
_GROWTH_BYTES_MAX: Final = 200_000_000
_BASE_OFFSET_BYTES: Final = 8


class Wrongs:
    """Ways in which an object is not what was put."""

    def __init__(self, chance: random.Random, tier: Tier, segments: list[RemoteSegment]) -> None:
        self._chance = chance
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

    def wrong(self, objects: dict[str, bytes]) -> str:
        """Make one object wrong, and name the change."""
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
        if suffix == layout.LOG:
            return self._flipped(key, suffix)
        one, other = self._good[key], self._good[self._chance.choice(self._keys[suffix])]
        at = self._chance.randrange(len(one))
        return (one[:at] + other[at:] + one[len(other) :])[: len(one)]

    def _moved(self, key: str, suffix: str) -> bytes:
        data = self._good[key]
        whole = {position for position, _ in iter_batches(data)} if suffix == layout.LOG else {0}
        at = self._chance.choice([at for at in range(len(data)) if at not in whole])
        return data[at:] + data[:at]

    def _flipped(self, key: str, suffix: str) -> bytes:
        data = bytearray(self._good[key])
        uncovered: set[int] = set()
        if suffix == layout.LOG:
            starts = [position for position, _ in iter_batches(bytes(data))]
            uncovered = {start + at for start in starts for at in range(_BASE_OFFSET_BYTES)}
        covered = [at for at in range(len(data)) if at not in uncovered]
        for _ in range(self._chance.choice((1, 1, 3, 40))):
            data[self._chance.choice(covered)] ^= 1 << self._chance.randrange(8)
        return bytes(data)


class Damaged(Exception):
    """A checksum of the records does not fit: the consumer sees that."""


class Attack:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.found: list[str] = []

    async def on_one_log(self, folder: Path, ends_s: float) -> None:
        chance = self.chance
        tier = Tier(folder, chunk_bytes=chance.choice((100, 256, 1_000, 1 << 20)))
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
        wrongs = Wrongs(chance, tier, segments)
        for _ in range(_ROUNDS):
            if time.monotonic() > ends_s or len(self.found) > 20:
                break
            what = wrongs.wrong(tier.store.objects)
            if chance.random() < 0.2:
                what = f"{what} and {wrongs.wrong(tier.store.objects)}"
            self.done[what.partition(" and ")[0]] += 1
            await self._look(what, tier, segments, wanted, end)
            wrongs.mend(tier.store.objects)
            for segment in segments:
                with contextlib.suppress(StoreFault):
                    tier.copies.forget(await tier.copies.open(segment))
        await self._judged("nothing", self._read(tier, 0, end, wanted), refuses=False)
        await tier.settled()

    async def _look(
        self, what: str, tier: Tier, segments: list[RemoteSegment], wanted: dict[int, bytes | None], end: int
    ) -> None:
        for offset in sorted(self.chance.sample(range(end), 4)):
            await self._judged(what, self._read(tier, offset, end, wanted))
        timestamp = NOW_MS + self.chance.randrange(end)
        await self._judged(what, tier.reader.offset_for_timestamp(tier.view, timestamp))
        await self._judged(what, tier.reader.aborted_transactions(tier.view, 0, end))
        await self._judged(what, tier.reader.start_after(self.chance.choice(segments), log_start_offset=0))

    async def _judged(self, what: str, work: object, *, refuses: bool = True) -> None:
        try:
            await work  # type: ignore[misc]
        except (StoreFault, Damaged) as error:
            if not refuses:
                self.found.append(f"mended, and still refused: {error}")
        except Exception as error:
            self.found.append(f"{what}: {error!r}")

    async def _read(self, tier: Tier, offset: int, end: int, wanted: dict[int, bytes | None]) -> None:
        """From `offset` on, as a consumer does, which checks checksums."""
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
