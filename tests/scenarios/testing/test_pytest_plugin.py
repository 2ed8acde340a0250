"""The pytest plugin and the unittest cases, in projects that use them."""

import subprocess
import sys
from pathlib import Path

import confluent_kafka  # noqa: F401
import pytest

import barnabas.testing.cases  # noqa: F401

# The modules imported above stay when pytester removes the modules of an inner run.
pytest_plugins = ("pytester",)


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run in this process, which has a fork server, and only with our plugin: others take seconds to load."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        return pytester.runpytest_inprocess("-p", "barnabas.testing.plugin", "-p", "no:cacheprovider", *arguments)


def run_apart(pytester: pytest.Pytester) -> pytest.RunResult:
    """In a process of its own. Brokers load modules when they need them; pytester takes those away after a run in this process,
    and classes of the next run would not be those that the rest of the broker knows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        return pytester.runpytest_subprocess("-p", "barnabas.testing.plugin", "-p", "no:cacheprovider", timeout=100)


def test_faults_and_killed_brokers_of_one_test_are_not_there_in_the_next(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from barnabas.testing import Record

        def test_breaks_it_all(kafka):
            kafka.cluster.fail_api(1, "Produce", error="NOT_ENOUGH_REPLICAS")
            kafka.cluster.skew_clock(1, -3_600_000)
            kafka.cluster.throttle(produce_bytes_per_s=1)
            kafka.cluster.kill(1)

        def test_pauses(kafka):
            kafka.cluster.pause(1)

        def test_finds_it_whole(kafka):
            from confluent_kafka import Producer
            errors = []
            topic = kafka.topic("orders", config={"message.timestamp.type": "LogAppendTime"})
            producer = Producer({"bootstrap.servers": kafka.bootstrap, "message.timeout.ms": 60000})
            producer.produce(topic, "coffee", on_delivery=lambda error, message: errors.append(error))
            producer.flush(60)
            assert errors == [None]
            import time
            [record] = kafka.records(topic)
            assert abs(record.timestamp_ms / 1000 - time.time()) < 1800
        """
    )
    run(pytester).assert_outcomes(passed=3)


def test_failed_test_shows_what_its_brokers_logged_and_which_faults_fired(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_fails(kafka):
            topic = kafka.topic("orders")
            kafka.cluster.fail_api(1, "Fetch", delay_ms=1)
            kafka.cluster.fail_api(1, "Metadata", drop=True, times=1)
            from confluent_kafka import Producer
            producer = Producer({"bootstrap.servers": kafka.bootstrap, "retry.backoff.ms": 10, "log_level": 0})
            producer.produce(topic, "coffee")
            producer.flush(60)
            kafka.assert_records(topic, ["tea"])

        def test_of_its_own_fails_too(kafka_cluster):
            cluster = kafka_cluster(brokers=1)
            cluster.create_topic("bills")
            assert False

        def test_passes(kafka):
            pass
        """
    )
    result = run(pytester)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*orders has 1 records, 1 were expected: 1 missing; 1 not expected",
            "*- 'tea'",
            "*+ 'coffee'   (partition 0, offset 0)",
            "*kafka: faults*",
            "*broker 1: Fetch gets a delay of 1 ms, always -> NEVER FIRED",
            "*broker 1: Metadata gets a dropped connection, 1 time -> fired 1 time",
            "*kafka: log of broker-1*",
            "*fault injection] Metadata of rdkafka: connection dropped*",
            "*kafka: log of broker-1*",
            "*bills*",
        ]
    )


def test_marker_gives_a_test_the_cluster_it_asks_for_and_tests_that_ask_alike_share_it(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest

        seen = {}
        three = pytest.mark.kafka(brokers=2, config={"num.partitions": 4})

        @three
        def test_first(kafka):
            seen["first"] = kafka.bootstrap
            assert kafka.cluster.brokers == 2

        @three
        def test_second(kafka):
            assert kafka.bootstrap == seen["first"]

        def test_without(kafka, kafka_shared_cluster):
            assert kafka.cluster.brokers == 1
            assert kafka.cluster is kafka_shared_cluster

        @pytest.mark.kafka(broker=3)
        def test_misspelt(kafka):
            pass

        @pytest.mark.kafka(3)
        def test_without_a_name(kafka):
            pass
        """
    )
    result = run(pytester, "--strict-markers")
    result.assert_outcomes(passed=3, errors=2)
    result.stdout.fnmatch_lines(["*pytest.mark.kafka has no option 'broker'; did you mean brokers?*"])
    result.stdout.fnmatch_lines(["*pytest.mark.kafka takes names: kafka(brokers=3), not kafka(3)*"])


def test_shared_cluster_is_secure_where_that_is_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from confluent_kafka import Producer

        def test_client_comes_in(kafka):
            errors = []
            topic = kafka.topic("orders")
            producer = Producer(kafka.librdkafka_settings())
            producer.produce(topic, "coffee", on_delivery=lambda error, message: errors.append(error))
            producer.flush(60)
            assert errors == [None]
            kafka.assert_records(topic, ["coffee"])
            assert kafka.client_settings("admin")["security.protocol"] == "SASL_SSL"
        """
    )
    run(pytester, "--kafka-secure").assert_outcomes(passed=1)


def test_unittest_cases_have_a_cluster_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio
        from barnabas.testing import AsyncKafkaTestCase, KafkaTestCase

        class TestOrders(KafkaTestCase):
            def test_order_arrives(self):
                topic = self.kafka.topic("orders")
                self.kafka.produce(topic, ["coffee"])
                self.kafka.assert_records(topic, ["coffee"])
                self.kafka.cluster.kill(1)

            def test_other_order_arrives(self):
                self.assertEqual([], self.kafka.records(self.kafka.topic("orders")))

        class TestAsync(AsyncKafkaTestCase):
            async def test_order_arrives(self):
                topic = await asyncio.to_thread(self.kafka.topic, "orders")
                self.kafka.produce(topic, ["coffee"])  # blocks, and works
                self.kafka.assert_records(topic, ["coffee"])
        """
    )
    run(pytester).assert_outcomes(passed=3)


def test_brokers_in_the_process_of_pytest_are_new_for_each_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.kafka(brokers=2, config={"num.partitions": 4})
        def test_first(kafka_broker):
            kafka_broker.create_topic("orders", partitions=4, replication_factor=2)
            assert kafka_broker.broker_ids == range(1, 3)

        def test_second(kafka_broker):
            assert kafka_broker.topics() == []

        def test_fails(kafka_broker):
            kafka_broker.create_topic("bills")
            kafka_broker.fail_api(1, "Fetch", delay_ms=1)
            assert False

        @pytest.mark.kafka(secure=True)
        def test_needs_processes(kafka_broker):
            pass
        """
    )
    result = run_apart(pytester)
    result.assert_outcomes(passed=2, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*Broker has no option 'secure': it needs processes, so use Cluster(secure=*"])
    result.stdout.fnmatch_lines(
        ["*kafka: faults*", "*delay of 1 ms, always -> NEVER FIRED", "*kafka: log of broker-1*", "*bills*"]
    )


def test_unittest_cases_run_brokers_in_their_process(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from barnabas.testing import AsyncBrokerTestCase, BrokerTestCase

        class TestOrders(BrokerTestCase):
            broker_options = {"config": {"num.partitions": 2}}

            def test_order_arrives(self):
                self.kafka.create_topic("orders")
                self.kafka.produce("orders", ["coffee"])
                self.kafka.assert_records("orders", ["coffee"])

            def test_fails(self):
                self.kafka.create_topic("bills")
                self.assertEqual(1, 2)

        class TestAsync(AsyncBrokerTestCase):
            async def test_order_arrives(self):
                await self.kafka.create_topic("orders")
                await self.kafka.produce("orders", ["coffee"])
                await self.kafka.assert_records("orders", ["coffee"])

            async def test_fails(self):
                await self.kafka.create_topic("letters")
                self.assertEqual(1, 2)
        """
    )
    result = run_apart(pytester)
    result.assert_outcomes(passed=2, failed=2)
    for topic in ("bills", "letters"):
        result.stdout.fnmatch_lines(["*--- kafka: log of broker-1 ---", f"*{topic}*"])


def test_unittest_run_ends_without_a_traceback(tmp_path: Path) -> None:
    """The launcher of brokers once ended before the clusters that it must stop."""
    (tmp_path / "test_orders.py").write_text(
        "from barnabas.testing import KafkaTestCase\n"
        "class TestOrders(KafkaTestCase):\n"
        "    def test_topic(self):\n"
        "        self.assertTrue(self.kafka.topic('orders'))\n"
        "class TestOfThree(KafkaTestCase):\n"
        "    kafka_options = {'brokers': 3}\n"
        "    def test_topic(self):\n"
        "        self.assertTrue(self.kafka.topic('orders'))\n"
    )
    command = [sys.executable, "-m", "unittest", "test_orders"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.rstrip().endswith("\nOK"), done.stderr


def test_plugin_imports_nothing_of_ours_before_a_test_asks(tmp_path: Path) -> None:
    """pytest loads it at every start, also in projects that have barnabas installed and never use it."""
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass\n")
    code = (
        "import pytest, sys\n"
        "pytest.main(['-q', '-p', 'no:cacheprovider', '-p', 'no:randomly', '-p', 'no:xdist', '-p', 'no:hypothesispytest'])\n"
        "print('LOADED', sorted(name for name in sys.modules if name.startswith('barnabas')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True
    )
    assert "1 passed" in done.stdout
    assert "LOADED ['barnabas', 'barnabas.testing', 'barnabas.testing.plugin']" in done.stdout
