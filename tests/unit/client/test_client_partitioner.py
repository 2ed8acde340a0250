"""Keys go to the partitions that the Java client chooses."""

import random

import pytest

from barnabas.client.partitioner import StickyPartitioner, murmur2, partition_of_key


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hash_is_that_of_kafkas_own_test_vectors(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


def test_partition_of_a_key_ignores_the_sign_of_its_hash() -> None:
    assert partition_of_key(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7


def test_records_without_a_key_stay_together_for_a_batch_then_move_on() -> None:
    partitioner = StickyPartitioner(100, random.Random(1))
    chosen = [partitioner.choose("t", None, 50, 40) for _ in range(60)]
    runs = [chosen[at : at + 3] for at in range(0, 60, 3)]
    assert all(len(set(run)) == 1 for run in runs)
    assert len(set(chosen)) > 5


def test_partition_that_no_longer_exists_is_not_chosen() -> None:
    partitioner = StickyPartitioner(10**9, random.Random(1))
    partitioner.choose("t", None, 50, 1)
    assert all(partitioner.choose("t", None, 2, 1) < 2 for _ in range(20))
