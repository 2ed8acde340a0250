"""`barnabas.testing.Broker`: real brokers in the process of the test."""

import asyncio
import gc
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # type: ignore[import-untyped]
from confluent_kafka import KafkaError, Message, Producer
from kafka import KafkaConsumer, KafkaProducer  # type: ignore[import-untyped]

from barnabas.testing import Broker, ClusterFailed, wait_until
from barnabas.testing.in_process import Machinery
from tests.scenarios.testing.testing_clients import consume, produce, values


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(100):  # a guard against standing still, not a measure
            await story

    asyncio.run(bounded())


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def test_aiokafka_writes_and_reads_on_the_loop_that_runs_the_broker() -> None:
    async def story() -> None:
        async with Broker() as kafka:
            await kafka.create_topic("orders")
            async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
                await producer.send_and_wait("orders", b"coffee", key=b"1")
            await kafka.assert_records("orders", [("1", "coffee")])
            consumer = AIOKafkaConsumer(
                "orders", bootstrap_servers=kafka.bootstrap, group_id="kitchen", auto_offset_reset="earliest"
            )
            async with consumer:
                assert (await consumer.getone()).value == b"coffee"
                await consumer.commit()
            await kafka.wait_for_lag("kitchen", 0)

    run(story())


def test_confluent_kafka_and_kafka_python_block_beside_a_broker_on_its_own_thread() -> None:
    with Broker() as kafka:
        kafka.create_topic("orders")
        assert produce(kafka.bootstrap, "orders", 3) == [None] * 3
        assert values(consume(kafka.bootstrap, "orders", 3)) == [b"0", b"1", b"2"]
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
        producer.send("orders", b"tea").get(60)
        producer.close()
        consumer = KafkaConsumer("orders", bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest")
        assert [next(consumer).value for _ in range(4)] == [b"0", b"1", b"2", b"tea"]
        consumer.close()
        kafka.assert_records("orders", ["0", "1", "2", "tea"])


def test_confluent_kafka_works_from_a_thread_while_the_loop_of_the_test_runs_the_broker() -> None:
    async def story() -> None:
        async with Broker() as kafka:
            await kafka.create_topic("orders")
            assert await asyncio.to_thread(produce, kafka.bootstrap, "orders", 2) == [None] * 2
            assert len(await kafka.records("orders")) == 2

    run(story())


def test_test_may_run_on_uvloop() -> None:
    async def story() -> None:
        async with Broker(brokers=2) as kafka:
            await kafka.create_topic("orders", replication_factor=2)
            assert await asyncio.to_thread(produce, kafka.bootstrap, "orders", 2) == [None] * 2
            await kafka.kill(1)
            await kafka.start_broker(1)
            await kafka.assert_records("orders", ["0", "1"])

    uvloop.run(story())


def test_client_that_blocks_the_loop_works_with_a_broker_on_its_own_thread() -> None:
    async def story() -> None:
        async with Broker(own_thread=True) as kafka:
            await kafka.create_topic("orders")
            assert produce(kafka.bootstrap, "orders") == [None]
            await kafka.assert_records("orders", ["0"])

    run(story())


def test_warning_shows_the_line_that_holds_the_loop_of_the_brokers(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with Broker() as kafka:
            await asyncio.sleep(0.1)
            deadline_s = time.monotonic() + 60
            while "held here" not in caplog.text:
                time.sleep(0.05)  # noqa: ASYNC251
                assert time.monotonic() < deadline_s
            assert await kafka.topics() == []

    run(story())
    assert "Broker(own_thread=True)" in caplog.text
    assert "time.sleep(0.05)" in caplog.text
    assert caplog.text.count("held here") == 1


def test_nothing_is_left_behind() -> None:
    """No task, thread, child process, signal handler, file, log setting or output."""
    logger = logging.getLogger("barnabas.broker")
    before_logger = (logger.level, logger.propagate, list(logger.handlers))
    threads, processes, thresholds = set(threading.enumerate()), children(), gc.get_threshold()

    async def story() -> None:
        handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        loop = asyncio.get_running_loop()
        former = loop.get_exception_handler()
        async with Broker(brokers=2) as kafka:
            folder = kafka.folder
            await kafka.create_topic("orders", replication_factor=2)
            await kafka.produce("orders", ["coffee"])
            assert children() == processes
            assert handlers == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert loop.get_exception_handler() is former
        assert not folder.exists()

    run(story())
    with Broker() as blocking:
        blocking.create_topic("orders")
    assert set(threading.enumerate()) == threads
    assert gc.get_threshold() == thresholds
    assert (logger.level, logger.propagate, list(logger.handlers)) == before_logger
    gc.collect()  # a socket that was left open would warn now, and warnings are errors


def test_several_brokers_live_in_one_process_at_once() -> None:
    async def story() -> None:
        async with Broker() as here, Broker() as there:
            with Broker() as elsewhere:
                for number, kafka in enumerate((here, there)):
                    await kafka.create_topic("orders")
                    await kafka.produce("orders", [str(number)])
                await asyncio.to_thread(elsewhere.create_topic, "orders")
                assert [record.value for record in await here.records("orders")] == [b"0"]
                assert [record.value for record in await there.records("orders")] == [b"1"]
                assert await asyncio.to_thread(elsewhere.records, "orders") == []
                assert "orders" in here.log(1)

    run(story())


def test_records_survive_a_leader_that_is_killed_and_started_again() -> None:
    with Broker(brokers=3, short_sessions=True) as kafka:
        kafka.create_topic("orders", replication_factor=3)
        kafka.produce("orders", ["before"])
        leader = kafka.leader_of("orders")
        kafka.kill(leader)
        with pytest.raises(ClusterFailed, match=f"broker {leader} is down"):
            kafka.skew_clock(leader, 1)
        deadline_s = time.monotonic() + 60
        while kafka.leader_of("orders") in (leader, -1):
            assert time.monotonic() < deadline_s
        kafka.produce("orders", ["meanwhile"])
        kafka.start_broker(leader)
        kafka.wait_for_isr("orders", 3)
        with pytest.raises(TimeoutError, match="in-sync replicas of unknown"):
            kafka.wait_for_isr("unknown", 3, timeout_s=0.1)
        kafka.assert_records("orders", ["before", "meanwhile"])
        kafka.restart(leader)
        kafka.wait_for_isr("orders", 3)


def test_leaders_that_are_killed_lose_no_acknowledged_record() -> None:
    """Nothing that a dead broker still does may count: a request that it answered, or a follower that it played."""
    settings: dict[str, Any] = {"log_level": 0, "retry.backoff.ms": 10, "linger.ms": 0, "acks": "all"}
    with Broker(brokers=3, short_sessions=True) as kafka:
        kafka.create_topic("orders", replication_factor=3)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, **settings})
        acknowledged: list[bytes] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                acknowledged.append(message.value() or b"")

        for number in range(3_000):
            producer.produce("orders", str(number), on_delivery=delivered)
            producer.poll(0)
            if number % 1_000 == 500:
                leader = kafka.leader_of("orders")
                kafka.kill(leader)
                kafka.start_broker(leader)
        assert producer.flush(60) == 0
        found = [record.value for record in kafka.records("orders")]
        assert sorted(found) == sorted(acknowledged)
        assert len(acknowledged) == 3_000


def test_killed_broker_stays_registered_until_its_session_expires() -> None:
    with Broker(brokers=2) as kafka:
        sessions = kafka._machinery.zookeeper.service.machine.sessions.by_id
        session_id = kafka._machinery.running(1).session.session_id
        kafka.kill(1)
        assert session_id in sessions
        kafka.terminate(2)
        assert list(sessions) == [session_id]


def test_killed_broker_has_neither_flushed_nor_marked_its_folder_clean(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as kafka:
        kafka.create_topic("orders")
        kafka.produce("orders", ["coffee"])
        kafka.kill(1)
        killed = {path.name for path in (tmp_path / "broker-1").iterdir()}
        kafka.start_broker(1)
        kafka.assert_records("orders", ["coffee"])
        kafka.terminate(1)
        stopped = {path.name for path in (tmp_path / "broker-1").iterdir()}
    assert stopped - killed >= {".kafka_cleanshutdown"}
    with Broker(data=tmp_path) as again:
        again.assert_records("orders", ["coffee"])


def test_injected_faults_reach_applications_and_are_counted() -> None:
    async def story() -> None:
        async with Broker() as kafka:
            await kafka.create_topic("orders")
            fault = await kafka.fail_api(1, "Produce", error="TOPIC_AUTHORIZATION_FAILED", times=1)
            assert fault.fired == 0
            [error] = await asyncio.to_thread(produce, kafka.bootstrap, "orders")
            assert error is not None
            assert error.name() == "TOPIC_AUTHORIZATION_FAILED"
            assert fault.fired == 1
            await kafka.fill_disk(1)
            await kafka.repair()
            assert await asyncio.to_thread(produce, kafka.bootstrap, "orders") == [None]
        assert fault.fired == 1

    run(story())


def test_compaction_needs_no_process() -> None:
    settings = {"log.cleaner.backoff.ms": 50}
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "segment.ms": 1}
    before = children()
    with Broker(config=settings) as kafka:
        kafka.create_topic("prices", config=compacted)
        deadline_s = time.monotonic() + 60
        while len(kafka.records("prices")) < 3 or len(kafka.records("prices")) > 4:
            kafka.produce("prices", [("tea", "1"), ("tea", "2")])
            time.sleep(0.1)
            assert time.monotonic() < deadline_s
        assert children() == before


def test_snapshot_brings_everything_back_at_the_same_address() -> None:
    async def story() -> None:
        async with Broker(brokers=2) as kafka:
            await kafka.create_topic("orders", replication_factor=2)
            await kafka.produce("orders", [f"order {number}" for number in range(100)])
            stocked, address = await kafka.snapshot(), kafka.bootstrap
            await kafka.produce("orders", ["one that should not be there"])
            await kafka.delete_topic("orders")
            await kafka.restore(stocked)
            assert kafka.bootstrap == address
            assert len(await kafka.records("orders")) == 100
            await kafka.produce("orders", ["another"])

    run(story())


def test_expired_session_and_restarted_zookeeper_do_not_end_a_broker() -> None:
    with Broker() as kafka:
        kafka.create_topic("orders")
        kafka.expire_session(1)
        kafka.restart_zookeeper(away_s=0.1)
        kafka.wait_until_led("orders")
        kafka.produce("orders", ["coffee"])


def test_failed_test_shows_what_the_broker_logged_and_others_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError) as failure, Broker() as kafka:
        kafka.create_topic("orders")
        kafka.fail_api(1, "Fetch", delay_ms=1)
        1 / 0  # noqa: B018
    notes = "\n".join(failure.value.__notes__)
    assert "--- kafka: faults ---" in notes
    assert "broker 1: Fetch gets a delay of 1 ms, always -> NEVER FIRED" in notes
    assert "--- kafka: log of broker-1 ---" in notes
    assert "orders" in notes
    assert capfd.readouterr() == ("", "")


def test_broker_that_cannot_start_says_why_and_leaves_nothing() -> None:
    threads = set(threading.enumerate())
    with pytest.raises(ClusterFailed, match=r"broker 1 did not start: .*log\.segment\.bytes"):
        Broker(config={"log.segment.bytes": 1}).__enter__()
    assert set(threading.enumerate()) == threads


def open_files() -> int:
    """How many files and sockets this process has open. uvloop closes a loop's descriptor when the loop is collected."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_broker_that_fails_while_it_starts_frees_what_it_had(tmp_path: Path) -> None:
    """Two brokers cannot have one folder: the second one finds out when it is connected to ZooKeeper already."""
    with Broker() as kafka:
        taken = str(kafka.log_dirs(1)[0])
        kafka.create_topic("orders")  # the controller of the first broker is connected to it now
        threads, files = set(threading.enumerate()), open_files()
        with pytest.raises(ClusterFailed, match=r"broker 1 did not start: .*lock"):
            Broker(config={"log.dirs": taken}).__enter__()
        assert set(threading.enumerate()) == threads
        assert open_files() == files
        kafka.produce("orders", ["coffee"])
    gc.collect()


def test_options_that_need_processes_are_refused_and_the_error_names_cluster() -> None:
    with pytest.raises(
        ValueError, match=r"Broker has no option 'secure': it needs processes, so use Cluster\(secure=…\)"
    ):
        Broker(secure=True)
    with pytest.raises(ValueError, match="no option 'broker'; did you mean brokers"):
        Broker(broker=3)
    with pytest.raises(ValueError, match="Broker chooses listeners itself"):
        Broker(config={"listeners": "PLAINTEXT://:9092"})
    with pytest.raises(ValueError, match="did you mean min"):
        Broker(config={"min.insync.replica": 1})
    with Broker() as kafka:
        for name in ("pause", "tear_write", "move_controller"):
            with pytest.raises(
                AttributeError, match=rf"{name}\(\) needs brokers that are processes.* Cluster has {name}"
            ):
                getattr(kafka, name)
        with pytest.raises(ValueError, match="there is no broker 2: there are broker 1 alone"):
            kafka.kill(2)

    async def story() -> None:
        async with Broker() as kafka:
            with pytest.raises(ClusterFailed, match="this would wait for itself"):
                kafka.blocking.topics()

    run(story())


def test_call_that_waits_ends_with_the_broker() -> None:
    async def story() -> None:
        async with Broker() as kafka:
            await kafka.create_topic("orders")
            waiting = asyncio.create_task(kafka.assert_records("orders", ["never comes"]))
            await asyncio.sleep(0.1)
        with pytest.raises(ClusterFailed, match="the broker was stopped"):
            await waiting

    run(story())


@pytest.mark.parametrize("own_thread", [False, True])
def test_start_that_is_cancelled_leaves_nothing(own_thread: bool) -> None:
    threads = set(threading.enumerate())

    async def story() -> None:
        cancelled = 0
        for wait_ms in (0, 2, 4, 6, 8, 10, 12, 15):
            try:
                async with asyncio.timeout(wait_ms / 1000), Broker(own_thread=own_thread):
                    await asyncio.sleep(1)
            except TimeoutError:
                cancelled += 1
            assert asyncio.all_tasks() == {asyncio.current_task()}
        assert cancelled == 8

    run(story())
    assert set(threading.enumerate()) == threads
    gc.collect()


def test_broker_that_fails_as_it_stops_does_not_hide_the_error_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Machinery.stop

    async def fail(machinery: Machinery) -> None:
        await stop(machinery)
        raise ClusterFailed("broker 1 did not stop as it should")

    monkeypatch.setattr(Machinery, "stop", fail)
    with pytest.raises(ZeroDivisionError) as failure, Broker():
        1 / 0  # noqa: B018
    assert "kafka: broker 1 did not stop as it should" in failure.value.__notes__
    with pytest.raises(ClusterFailed, match="did not stop as it should"), Broker():
        pass


def test_import_of_the_package_stays_cheap() -> None:
    code = "import sys, barnabas.testing; print(sorted(name for name in sys.modules if name.startswith('barnabas')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.strip() == "['barnabas', 'barnabas.testing']"


def test_folder_of_a_process_that_was_killed_is_removed_by_the_next_one() -> None:
    code = (
        "import os, signal\nfrom barnabas.testing import Broker\n"
        "with Broker() as kafka:\n    print(kafka.folder, flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    folder = Path(done.stdout.strip())
    assert folder.is_dir(), done.stderr
    with Broker() as kafka:
        assert not folder.exists()
        with Broker() as other:
            assert kafka.folder.is_dir()
            assert other.folder != kafka.folder


def test_faults_count_their_hits_and_end_alone() -> None:
    with Broker() as kafka:
        kafka.create_topic("orders")
        slow = kafka.slow_disk(1, delay_ms=1)
        late = kafka.slow_network(1, delay_ms=1)
        refused = kafka.fail_api(1, "Produce", error="NOT_ENOUGH_REPLICAS")
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "retry.backoff.ms": 20, "log_level": 0})
        producer.produce("orders", "coffee")
        wait_until(lambda: producer.poll(0.01) or refused.fired, what="a refused write")
        assert late.fired > 0
        refused.end()
        assert producer.flush(60) == 0
        assert slow.fired > 0
        slow.end()
        late.end()
        before = (slow.fired, late.fired)
        producer.produce("orders", "tea")
        assert producer.flush(60) == 0
        assert (slow.fired, late.fired) == before
