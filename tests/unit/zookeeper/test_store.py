"""The data directory after crashes: torn tails, damage, incomplete snapshots."""

import random
from pathlib import Path

import pytest

from barnabas.zookeeper import snapshot, txnlog, txns
from barnabas.zookeeper.machine import Machine
from barnabas.zookeeper.store import Store
from barnabas.zookeeper.txnlog import StoreFault
from barnabas.zookeeper.wire import Op
from tests.unit.zookeeper.zk_requests import Driver, create, image, set_data


def opened(folder: Path) -> Store:
    store = Store(folder, tick_ms=1000, snapshots_kept=3)
    store.open()
    return store


def recovered(folder: Path) -> Machine:
    store = opened(folder)
    try:
        return store.recover()
    finally:
        store.close()


def frames(driver: Driver, since: int = 0) -> list[bytes]:
    return [txnlog.frame(txns.encode(written.header, written.txn)) for written in driver.written[since:]]


def some_history(count: int = 8) -> Driver:
    driver = Driver()
    client = driver.client(5)
    driver.write(client, Op.CREATE, create("/a", flags=1))
    for number in range(count):
        driver.write(client, Op.CREATE, create(f"/n{number}", b"x" * number))
        driver.write(client, Op.SET_DATA, set_data(f"/n{number}", b"y" * 50))
    return driver


def images(driver: Driver) -> list[dict[str, tuple[object, ...]]]:
    """Return the state after each transaction."""
    machine = Machine(tick_ms=1000)
    states = [image(machine)]
    for written in driver.written:
        machine.replay(written.header, written.txn)
        states.append(image(machine))
    return states


def write_log(folder: Path, records: list[bytes], first_zxid: int = 1) -> Path:
    recovered(folder)
    writer = txnlog.LogWriter(folder / "version-2")
    writer.append(first_zxid, b"".join(records))
    writer.close()
    return folder / "version-2" / txnlog.file_name(first_zxid)


def take_snapshot(folder: Path, machine: Machine) -> Path:
    writer = snapshot.SnapshotWriter(folder / "version-2", machine.last_zxid)
    for piece in snapshot.slices(machine):
        writer.write(piece)
    return writer.finish()


def test_log_cut_at_any_byte_gives_the_whole_records_before_it(tmp_path: Path) -> None:
    driver = some_history(3)
    states = images(driver)
    records = frames(driver)
    path = write_log(tmp_path, records)
    whole = path.read_bytes()
    ends = [16]
    for record in records:
        ends.append(ends[-1] + len(record))
    assert ends[-1] == len(whole)
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        complete = max((index for index, end in enumerate(ends) if end <= cut), default=0)
        assert image(recovered(tmp_path)) == states[complete], f"cut at {cut}"
        # The torn part is deleted from the disk, too: the next start sees a clean end.
        assert image(recovered(tmp_path)) == states[complete]


@pytest.mark.parametrize("padding", [0, 1, 4096])
def test_garbage_in_the_last_record_is_dropped(tmp_path: Path, padding: int) -> None:
    driver = some_history(3)
    states = images(driver)
    records = frames(driver)
    path = write_log(tmp_path, records)
    whole = path.read_bytes()
    last = len(whole) - len(records[-1])
    for seed in range(40):
        rng = random.Random(seed)
        torn = bytearray(whole + bytes(padding))
        at = rng.randrange(last, len(whole))
        torn[at] ^= rng.randrange(1, 256)
        path.write_bytes(torn)
        assert image(recovered(tmp_path)) == states[-2], f"seed {seed}"


@pytest.mark.parametrize("damage", [b"\x01", bytes(700)])
@pytest.mark.parametrize("dbid", [None, 0])
def test_damage_in_acknowledged_transactions_is_refused_not_dropped(
    tmp_path: Path, damage: bytes, dbid: int | None
) -> None:
    """Also in a log of Apache ZooKeeper, which does not store where its last flush began (so zeros are its end)."""
    records = frames(some_history(20))
    recovered(tmp_path)
    writer = txnlog.LogWriter(tmp_path / "version-2")
    for zxid in range(0, len(records), 4):
        writer.append(zxid + 1, b"".join(records[zxid : zxid + 4]))
    writer.close()
    path = tmp_path / "version-2" / txnlog.file_name(1)
    whole = bytearray(path.read_bytes())
    at = 16 + len(records[0]) + 30
    whole[at : at + len(damage)] = damage
    if dbid is not None:
        whole[8:16] = dbid.to_bytes(8, "big")
    path.write_bytes(whole)
    if dbid == 0 and len(damage) > 1:
        assert recovered(tmp_path).last_zxid == 1
        return
    with pytest.raises(StoreFault, match="is damaged at byte"):
        recovered(tmp_path)


PAGE = 512


def test_power_cut_may_take_any_page_of_the_last_flush(tmp_path: Path) -> None:
    """A power cut in the middle, too. Acknowledged transactions are kept, and after them a prefix of the rest."""
    driver = some_history(40)
    states = images(driver)
    records = frames(driver)
    acknowledged = 30
    for seed in range(80):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        recovered(folder)
        writer = txnlog.LogWriter(folder / "version-2")
        path = folder / "version-2" / txnlog.file_name(1)
        at = 0
        while at < acknowledged:
            count = min(rng.randrange(1, 12), acknowledged - at)
            writer.append(at + 1, b"".join(records[at : at + count]))
            at += count
        before = path.read_bytes()
        writer.append(at + 1, b"".join(records[at:]))
        after = bytearray(path.read_bytes())
        for start in range(0, len(after), PAGE):
            if rng.random() < 0.4:
                # Lost, or torn: the beginning of the page was written.
                kept = rng.choice((0, 0, rng.randrange(PAGE)))
                lost = before[start + kept : start + PAGE].ljust(min(PAGE - kept, len(after) - start - kept), b"\0")
                after[start + kept : start + kept + len(lost)] = lost
        path.write_bytes(after)
        found = image(recovered(folder))
        assert found in states[acknowledged:], f"seed {seed}"
        assert image(recovered(folder)) == found, f"seed {seed}"


def test_missing_log_in_the_middle_is_refused(tmp_path: Path) -> None:
    driver = some_history(4)
    records = frames(driver)
    write_log(tmp_path, records[:5])
    writer = txnlog.LogWriter(tmp_path / "version-2")
    writer.append(9, b"".join(records[8:]))
    writer.close()
    with pytest.raises(StoreFault, match="transactions are missing"):
        recovered(tmp_path)


def test_fresh_file_that_a_crash_left_without_records_is_removed(tmp_path: Path) -> None:
    driver = some_history(2)
    write_log(tmp_path, frames(driver))
    for content in (b"", b"ZK", bytes(16), bytes(65536), txnlog.FILE_HEADER.pack(txnlog.MAGIC, 2, 0) + bytes(100)):
        empty = tmp_path / "version-2" / txnlog.file_name(len(driver.written) + 1)
        empty.write_bytes(content)
        assert recovered(tmp_path).last_zxid == len(driver.written)
        assert not empty.exists()


def test_file_that_is_not_a_log_is_refused(tmp_path: Path) -> None:
    recovered(tmp_path)
    (tmp_path / "version-2" / "log.1").write_bytes(b"not a log at all")
    with pytest.raises(StoreFault, match="is not a ZooKeeper transaction log"):
        recovered(tmp_path)


def test_snapshot_damaged_anywhere_is_passed_over_for_an_older_one(tmp_path: Path) -> None:
    driver = some_history(3)
    secret = ((31, "digest", "alice:c2VjcmV0"),)
    driver.write(driver.client(6), Op.CREATE, create("/secret", acl=secret))
    states = images(driver)
    write_log(tmp_path, frames(driver))
    path = take_snapshot(tmp_path, driver.machine)
    whole = path.read_bytes()
    assert image(recovered(tmp_path)) == states[-1]
    # Everywhere in the sessions and access control lists, which come first; then at random places.
    for seed in range(200):
        rng = random.Random(seed)
        bad = bytearray(whole)
        if seed < 140:
            bad[seed] ^= 0xFF
        elif seed % 2:
            bad[rng.randrange(len(whole) - 5)] ^= rng.randrange(1, 256)
        else:
            del bad[rng.randrange(len(whole)) :]
        if len(bad) >= len(whole) - 5 and bad[: len(whole) - 5] == whole[: len(whole) - 5]:
            continue
        path.write_bytes(bad)
        assert image(recovered(tmp_path)) == states[-1], f"seed {seed}"


def test_half_written_snapshot_is_swept_away(tmp_path: Path) -> None:
    driver = some_history(2)
    write_log(tmp_path, frames(driver))
    left = tmp_path / "version-2" / "snapshot.5.tmp"
    left.write_bytes(b"ZKSN")
    recovered(tmp_path)
    assert not left.exists()


def test_no_readable_snapshot_and_logs_that_begin_late_is_refused(tmp_path: Path) -> None:
    driver = some_history(3)
    write_log(tmp_path, frames(driver))
    path = take_snapshot(tmp_path, driver.machine)
    (tmp_path / "version-2" / "snapshot.0").unlink()
    (tmp_path / "version-2" / "log.1").rename(tmp_path / "version-2" / "log.4")
    path.write_bytes(b"ZKSN")
    with pytest.raises(StoreFault, match="earlier transactions are lost"):
        recovered(tmp_path)


def test_purge_keeps_the_logs_that_the_oldest_snapshot_needs(tmp_path: Path) -> None:
    store = opened(tmp_path)
    machine = store.recover()
    writer = store.writer()
    driver = Driver()
    driver.machine = machine
    client = driver.client(1)
    done = 0
    for _ in range(6):
        for number in range(3):
            driver.write(client, Op.SET_DATA, set_data("/", bytes([number])))
        writer.append(done + 1, b"".join(frames(driver, done)))
        done = len(driver.written)
        writer.roll()
        take_snapshot(tmp_path, machine)
        store.purge()
    names = sorted(path.name for path in store.folder.iterdir())
    assert len([name for name in names if name.startswith("snapshot.")]) == 3
    assert len([name for name in names if name.startswith("log.")]) == 2
    store.close()
    for path in sorted(store.folder.glob("snapshot.*"), key=lambda p: int(p.suffix[1:], 16))[1:]:
        path.write_bytes(b"")
    assert image(recovered(tmp_path)) == image(machine)


def test_directory_has_one_server_at_a_time(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(StoreFault, match="in use by another server"):
        opened(tmp_path)
    store.close()
    opened(tmp_path).close()


def test_secret_is_kept_and_readable_by_the_owner_alone(tmp_path: Path) -> None:
    store = opened(tmp_path)
    secret = store.secret()
    assert store.secret() == secret
    assert (tmp_path / "session.secret").stat().st_mode & 0o777 == 0o600
    store.close()
