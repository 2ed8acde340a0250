"""An object store by its URL."""

import asyncio
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest

from barnabas.base.errors import ConfigError
from barnabas.broker.features.tiered.store import PART_BYTES, FilePart, ObjectMissing, Store, StoreFault, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"file://{tmp_path}/tier")


async def test_stored_object_is_read_in_ranges(store: Store) -> None:
    await store.put("a-1/0/one.log", b"0123456789")
    assert await store.get_range("a-1/0/one.log", 2, 5) == b"234"
    assert await store.get_range("a-1/0/one.log", 0, 10) == b"0123456789"
    assert await store.get_range("a-1/0/one.log", 3, 3) == b""
    assert await store.get("a-1/0/one.log", bytes_max=10) == b"0123456789"


async def test_object_that_is_larger_than_it_can_be_is_not_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put("a-1/0/one.indexes", bytes(11))
    get = obstore.get_async

    async def unread(*given: Any) -> SimpleNamespace:
        return SimpleNamespace(meta=(await get(*given)).meta)  # nothing that could be read

    monkeypatch.setattr(obstore, "get_async", unread)
    with pytest.raises(StoreFault, match=r"a-1/0/one\.indexes has 11 bytes, more than the 10 that it can have"):
        await store.get("a-1/0/one.indexes", bytes_max=10)


async def test_fewer_bytes_than_asked_for_are_a_fault(store: Store) -> None:
    await store.put("a/one.log", b"0123456789")
    with pytest.raises(StoreFault):
        await store.get_range("a/one.log", 5, 11)


async def test_a_missing_object_is_said_to_be_missing(store: Store) -> None:
    with pytest.raises(ObjectMissing):
        await store.get_range("a/none.log", 0, 1)
    with pytest.raises(ObjectMissing):
        await store.get("a/none.log", bytes_max=10)


async def test_a_file_larger_than_a_part_goes_up_whole(store: Store, tmp_path: Path) -> None:
    data = bytes(range(256)) * (PART_BYTES // 256 + 10)
    (tmp_path / "segment").write_bytes(data)
    await store.put("a/large.log", FilePart(str(tmp_path / "segment"), len(data)))
    assert await store.get_range("a/large.log", PART_BYTES - 3, PART_BYTES + 3) == data[PART_BYTES - 3 : PART_BYTES + 3]
    assert await store.list("a/") == [("a/large.log", len(data))]


async def test_a_file_of_another_length_than_said_is_a_fault(store: Store, tmp_path: Path) -> None:
    (tmp_path / "segment").write_bytes(b"12345")
    with pytest.raises(StoreFault, match=r"a/one\.log: the file has 5 bytes, which is 1 too few"):
        await store.put("a/one.log", FilePart(str(tmp_path / "segment"), 6))
    assert list((tmp_path / "tier" / "a").iterdir()) == []


async def test_a_file_goes_to_a_directory_without_passing_through_this_process(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put_async(*given: object, **options: object) -> None:
        raise AssertionError("through our memory")

    monkeypatch.setattr(obstore, "put_async", put_async)
    (tmp_path / "segment").write_bytes(b"12345 and more")
    await store.put("a/one.log", FilePart(str(tmp_path / "segment"), 5))
    assert await store.get("a/one.log", bytes_max=5) == b"12345"
    assert [file.name for file in (tmp_path / "tier" / "a").iterdir()] == ["one.log"]


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS])
async def test_a_file_that_the_kernel_does_not_copy_is_still_stored(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def copy_file_range(*given: object) -> int:
        raise OSError(number, "not here")

    monkeypatch.setattr(os, "copy_file_range", copy_file_range, raising=False)
    (tmp_path / "segment").write_bytes(b"12345")
    await store.put("a/one.log", FilePart(str(tmp_path / "segment"), 5))
    assert await store.get("a/one.log", bytes_max=5) == b"12345"
    assert [file.name for file in (tmp_path / "tier" / "a").iterdir()] == ["one.log"]


async def test_a_full_disk_is_a_fault_and_leaves_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_file_range(*given: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "copy_file_range", copy_file_range, raising=False)
    (tmp_path / "segment").write_bytes(b"12345")
    with pytest.raises(StoreFault, match="no space left"):
        await store.put("a/one.log", FilePart(str(tmp_path / "segment"), 5))
    assert list((tmp_path / "tier" / "a").iterdir()) == []


async def test_files_of_a_killed_copy_are_not_objects(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "rename", lambda staged, target: None)
    (tmp_path / "segment").write_bytes(b"12345")
    with pytest.raises(StoreFault):
        await store.put("a/one.log", FilePart(str(tmp_path / "segment"), 5))
    [left] = (tmp_path / "tier" / "a").iterdir()
    assert left.read_bytes() == b"12345"
    assert await store.list("a/") == []


async def test_a_file_that_is_gone_is_a_fault(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreFault):
        await store.put("a/one.log", FilePart(str(tmp_path / "gone"), 6))


async def test_deleted_objects_are_gone_and_can_be_deleted_again(store: Store) -> None:
    await store.put("a/one.log", b"1")
    await store.put("ab/two.log", b"2")
    assert await store.list("a/") == [("a/one.log", 1)]
    await store.delete(["a/one.log", "a/none.log"])
    await store.delete(["a/one.log"])
    assert await store.list("a/") == []
    assert await store.list("ab/") == [("ab/two.log", 1)]


def test_urls_that_are_not_stores_are_refused() -> None:
    with pytest.raises(ConfigError, match="ftp://x"):
        open_store("ftp://x")
    with pytest.raises(ConfigError, match="has no settings"):
        open_store("file:///tmp/x", {"aws_access_key_id": "1"})


async def test_the_loop_goes_on_while_the_store_works(store: Store, tmp_path: Path) -> None:
    (tmp_path / "segment").write_bytes(bytes(PART_BYTES * 2))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await store.put("a/one.log", FilePart(str(tmp_path / "segment"), PART_BYTES * 2))
    counting.cancel()
    assert turns > 5
