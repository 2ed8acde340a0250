"""How a broker takes its place in the cluster."""

import asyncio
import json
import stat
from pathlib import Path
from unittest.mock import patch

import pytest

from barnabas.base.clock import SystemClock
from barnabas.base.host.disk import REAL_DISK
from barnabas.base.ids import BrokerId
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.former_session import FILE_NAME, FormerSession
from barnabas.broker.zookeeper_client.log_dir_failure import report_log_dir_failure
from barnabas.broker.zookeeper_client.registration import (
    BrokerRegistrar,
    DuplicateBrokerId,
    create_or_get_cluster_id,
    create_top_level_paths,
    generate_broker_id,
)
from barnabas.broker.zookeeper_client.session import SessionState, ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import SessionExpired
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration, Endpoint
from tests.manual_time import ManualClock
from tests.support.waiting import eventually
from tests.unit.broker.zookeeper_client.zookeeper_fixture import Ensemble, session, states_of, zookeeper

GOLDEN = json.loads((Path(__file__).parents[3] / "golden/kafka-3.9.1/znodes.json").read_text())


def broker(number: int, port: int) -> BrokerRegistration:
    return BrokerRegistration(number, (Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", port),), rack="r0")


def registrar(zk: ZooKeeperSession, registration: BrokerRegistration, wait_ms: int = 0) -> BrokerRegistrar:
    return BrokerRegistrar(zk, registration, clock=SystemClock(), wait_for_former_self_ms=wait_ms)


async def test_registration_leaves_the_znode_that_kafka_leaves() -> None:
    async with zookeeper() as ensemble, session(ensemble, "/golden") as zk:
        await create_top_level_paths(zk)
        expected = GOLDEN["/brokers/ids/0"]
        clock = ManualClock(int(json.loads(expected["data"])["timestamp"]))
        place = BrokerRegistrar(zk, broker(0, 19200), clock=clock, wait_for_former_self_ms=0)
        epoch = await place.register()
        data, stat = await zk.get("/brokers/ids/0")
        assert data == expected["data"].encode()
        assert stat.version == expected["version"]
        assert stat.ephemeral_owner == zk.session_id
        assert epoch == stat.czxid == place.epoch


async def test_persistent_paths_are_made_empty_as_kafka_makes_them(zk: ZooKeeperSession) -> None:
    await create_top_level_paths(zk)
    await create_top_level_paths(zk)
    for path in paths.PERSISTENT:
        data, stat = await zk.get(path)
        assert (data, stat.version) == (None, 0)


async def test_second_broker_with_the_same_id_is_refused_with_the_address_of_the_first() -> None:
    async with zookeeper() as ensemble, session(ensemble) as first, session(ensemble) as second:
        await create_top_level_paths(first)
        await registrar(first, broker(1, 9092)).register()
        with pytest.raises(DuplicateBrokerId, match=r"broker\.id=1 is taken.*PLAINTEXT://127\.0\.0\.1:9092"):
            await registrar(second, broker(1, 9999), wait_ms=10_000).register()


async def test_broker_that_was_killed_waits_for_its_former_session_to_expire() -> None:
    async with zookeeper() as ensemble, session(ensemble) as former, session(ensemble) as now:
        await create_top_level_paths(former)
        old_epoch = await registrar(former, broker(1, 9092)).register()
        starting = asyncio.ensure_future(registrar(now, broker(1, 9092), wait_ms=20_000).register())
        # It waits: the znode is still there.
        await now.exists("/")
        assert not starting.done()
        await former.stop()
        assert await starting > old_epoch


def former(ensemble: Ensemble, folder: Path) -> FormerSession:
    return FormerSession(
        ensemble.config(), None, disk=REAL_DISK, directories=lambda: [str(folder)], on_thread=asyncio.to_thread
    )


async def test_broker_that_was_killed_closes_its_former_session_and_registers_at_once(tmp_path: Path) -> None:
    async with zookeeper() as ensemble, session(ensemble) as old, session(ensemble) as new:
        await create_top_level_paths(old)
        states = states_of(old)
        kept = former(ensemble, tmp_path)
        first = BrokerRegistrar(old, broker(7, 9092), clock=SystemClock(), wait_for_former_self_ms=0, former=kept)
        epoch = await first.register()
        # No time to wait: only closing the session helps.
        second = BrokerRegistrar(
            new, broker(7, 9092), clock=SystemClock(), wait_for_former_self_ms=0, former=former(ensemble, tmp_path)
        )
        assert await second.register() > epoch
        _, owned = await new.get(paths.broker_id(7))
        assert owned.ephemeral_owner == new.session_id
        await eventually(lambda: SessionState.EXPIRED in states)


async def test_broker_registers_when_the_connection_is_back_that_was_lost_just_before(
    ensemble: Ensemble, zk: ZooKeeperSession, tmp_path: Path
) -> None:
    """kazoo does not tell the key of its session while it is not connected."""

    await create_top_level_paths(zk)
    place = BrokerRegistrar(
        zk, broker(7, 9092), clock=SystemClock(), wait_for_former_self_ms=0, former=former(ensemble, tmp_path)
    )
    registering: list[asyncio.Task[int]] = []

    def lost(state: SessionState) -> None:
        if state is SessionState.SUSPENDED:
            registering.append(asyncio.ensure_future(place.register()))

    zk.on_state(lost)
    states = states_of(zk)
    ensemble.drop_connections()
    await eventually(lambda: SessionState.SUSPENDED in states)
    assert await registering[0] == place.epoch
    _, owned = await zk.get(paths.broker_id(7))
    assert owned.ephemeral_owner == zk.session_id
    assert f"{zk.session_id:x}" in (tmp_path / FILE_NAME).read_text()


async def test_broker_whose_session_is_over_as_it_registers_hears_of_that(
    ensemble: Ensemble, zk: ZooKeeperSession, tmp_path: Path
) -> None:
    """The next session registers it. Any other error ends the broker."""

    await create_top_level_paths(zk)
    place = BrokerRegistrar(
        zk, broker(7, 9092), clock=SystemClock(), wait_for_former_self_ms=0, former=former(ensemble, tmp_path)
    )
    registering: list[asyncio.Task[int]] = []

    def expired(state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            registering.append(asyncio.ensure_future(place.register()))

    zk.on_state(expired)
    states = states_of(zk)
    ensemble.expire_sessions()
    await eventually(lambda: SessionState.EXPIRED in states)
    with pytest.raises(SessionExpired):
        await registering[0]
    await eventually(lambda: SessionState.RENEWED in states)
    assert await place.register() > 0


async def test_broker_that_was_killed_as_it_registered_closes_that_session_too(tmp_path: Path) -> None:
    """Tier seed 73: the znode was there, the key to its session was not yet. The next process waited for the time-out."""

    async with (
        zookeeper() as ensemble,
        session(ensemble) as first,
        session(ensemble) as second,
        session(ensemble) as third,
    ):
        await create_top_level_paths(first)

        def place(zk: ZooKeeperSession) -> BrokerRegistrar:
            kept = former(ensemble, tmp_path)
            return BrokerRegistrar(zk, broker(7, 9092), clock=SystemClock(), wait_for_former_self_ms=0, former=kept)

        class Killed(Exception):
            """Where the process ends."""

        def killed(*_: object) -> None:
            raise Killed

        await place(first).register()
        # One is killed before it asks ZooKeeper, and one as soon as ZooKeeper has done what it asked for.
        dies_early, dies_late = place(second), place(second)
        with patch.object(second, "transaction", killed), pytest.raises(Killed):
            await dies_early.register()
        with patch.object(dies_late, "_registered", killed), pytest.raises(Killed):
            await dies_late.register()
        _, owned = await third.get(paths.broker_id(7))
        assert owned.ephemeral_owner == second.session_id
        await place(third).register()
        _, owned = await third.get(paths.broker_id(7))
        assert owned.ephemeral_owner == third.session_id


async def test_broker_with_other_ports_waits_for_the_session_of_its_former_self(tmp_path: Path) -> None:
    """`up --port 0 --data` after a power cut: each attempt was refused at once, and the session never expired."""

    async with (
        zookeeper() as ensemble,
        session(ensemble) as old,
        session(ensemble) as new,
        session(ensemble) as other,
    ):
        await create_top_level_paths(old)
        kept = former(ensemble, tmp_path)
        first = BrokerRegistrar(old, broker(7, 9092), clock=SystemClock(), wait_for_former_self_ms=0, former=kept)
        epoch = await first.register()
        with pytest.raises(DuplicateBrokerId):
            # Another log directory: it is another broker's session.
            await registrar(other, broker(7, 9094), wait_ms=60_000).register()
        second = BrokerRegistrar(
            new,
            broker(7, 9093),
            clock=SystemClock(),
            wait_for_former_self_ms=60_000,
            former=former(ensemble, tmp_path),
        )
        waiting = asyncio.create_task(second.register())
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done, "the session of a live broker is not closed"
        await old.stop()
        assert await waiting > epoch


async def test_session_key_is_readable_for_its_owner_only_and_never_logged(
    ensemble: Ensemble, zk: ZooKeeperSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = former(ensemble, tmp_path)
    await kept.keep(await zk.key())
    file = tmp_path / FILE_NAME
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = json.loads(file.read_bytes())["password"]
    assert bytes.fromhex(secret) == (await zk.key()).password
    assert secret not in repr(await zk.key())
    file.write_bytes(file.read_bytes()[:-1])
    assert not await kept.end(zk.session_id)
    assert "is damaged" in caplog.text
    assert secret not in caplog.text


async def test_session_of_another_broker_is_not_closed(tmp_path: Path) -> None:
    async with zookeeper() as ensemble, session(ensemble) as zk, session(ensemble) as other:
        await former(ensemble, tmp_path).keep(await zk.key())
        assert not await former(ensemble, tmp_path).end(other.session_id)
        assert await other.exists("/")


async def test_former_self_that_stays_is_a_duplicate() -> None:
    async with zookeeper() as ensemble, session(ensemble) as former, session(ensemble) as now:
        await create_top_level_paths(former)
        await registrar(former, broker(1, 9092)).register()
        with pytest.raises(DuplicateBrokerId):
            await registrar(now, broker(1, 9092), wait_ms=50).register()


async def test_broker_registers_again_after_its_session_expired_with_a_higher_epoch(
    ensemble: Ensemble, zk: ZooKeeperSession
) -> None:
    await create_top_level_paths(zk)
    states = states_of(zk)
    place = registrar(zk, broker(1, 9092))
    first = await place.register()
    # Asking again in the same session changes nothing.
    assert await place.register() == first
    ensemble.expire_sessions()
    await eventually(lambda: SessionState.RENEWED in states)
    assert await place.register() > first
    # The controller can tell that it is still the same process, with all that it had.
    data, _ = await zk.get("/brokers/ids/1")
    assert BrokerRegistration.decode(1, data or b"").incarnation == first


async def test_first_broker_chooses_the_cluster_id_and_the_others_find_it(zk: ZooKeeperSession) -> None:
    assert await create_or_get_cluster_id(zk, lambda: "W0vlOuTWSMqfJRGHnv4WcQ") == "W0vlOuTWSMqfJRGHnv4WcQ"
    assert await create_or_get_cluster_id(zk, lambda: "another") == "W0vlOuTWSMqfJRGHnv4WcQ"
    assert (await zk.get("/cluster/id"))[0] == GOLDEN["/cluster/id"]["data"].encode()


async def test_brokers_that_race_agree_on_one_cluster_id() -> None:
    async with zookeeper() as ensemble, session(ensemble) as one, session(ensemble) as two:
        ids = await asyncio.gather(
            create_or_get_cluster_id(one, lambda: "one"), create_or_get_cluster_id(two, lambda: "two")
        )
        assert ids[0] == ids[1]


async def test_generated_broker_ids_start_above_the_reserved_ones_and_never_repeat(zk: ZooKeeperSession) -> None:
    assert await generate_broker_id(zk, reserved_broker_max_id=1000) == 1001
    assert await generate_broker_id(zk, reserved_broker_max_id=1000) == 1002


async def test_failed_directory_is_reported_although_the_parent_of_reports_was_deleted(zk: ZooKeeperSession) -> None:
    await create_top_level_paths(zk)
    await zk.delete(paths.LOG_DIR_EVENT_NOTIFICATION)
    await report_log_dir_failure(zk, BrokerId(1))
    assert len(await zk.children(paths.LOG_DIR_EVENT_NOTIFICATION)) == 1
