"""A misspelt setting is reported with the nearest name, not ignored."""

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from barnabas.base.errors import ConfigError
from barnabas.cli import _stdin
from barnabas.cli._command import UsageError
from barnabas.cli._connection import options
from barnabas.cli._format import formatter_of
from barnabas.cli.console_producer import LineReader, _produce
from barnabas.cli.local_cluster import LocalCluster
from barnabas.client import names
from barnabas.client.producer import Producer, ProducerConfig
from barnabas.client.settings import producer_config
from tests.unit.client.client_fake_cluster import FakeCluster

pytestmark = pytest.mark.uvloop


def test_unknown_producer_setting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"akcs is not a setting of a producer; did you mean acks\?"):
        names.require_known({"akcs": "all"}, names.PRODUCER, what="a producer")
    names.require_known({"acks": "all", "receive.buffer.bytes": "1"}, names.PRODUCER, what="a producer")


def test_tool_warns_of_settings_without_effect_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    options("h:1", properties={"securty.protocol": "SSL", "client.id": "x", "metric.reporters": "y"})
    assert capsys.readouterr().err.splitlines() == [
        "warning: securty.protocol is not a setting of a client and is ignored; did you mean security.protocol?",
        "warning: metric.reporters has no effect with this client",
    ]


def test_console_tools_report_misspelt_properties(capsys: pytest.CaptureFixture[str]) -> None:
    formatter_of("Default", {"print.kee": "true", "print.key": "true"})
    assert "--property print.kee is not a property of the formatter and is ignored; did you mean print.key?" in (
        capsys.readouterr().err
    )
    with pytest.raises(UsageError, match=r"parse\.kee is not a property of the line reader; did you mean parse\.key\?"):
        LineReader.of({"parse.kee": "true"})


@pytest.mark.parametrize("given", ["RoundRobinPartitioner", "org.apache.kafka.clients.producer.RoundRobinPartitioner"])
async def test_round_robin_uses_one_partition_after_the_other(given: str) -> None:
    """Without the check, six lines for three partitions landed in one."""
    fake = FakeCluster(topics={"t": 3})
    async with fake.client() as cluster, Producer(cluster, producer_config({"partitioner.class": given})) as producer:
        for number in range(6):
            await producer.send("t", b"%d" % number, key=b"same" if number % 2 else None)
    assert Counter(len(fake.values("t", index)) for index in range(3)) == {2: 3}


def test_partitioner_of_java_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"partitioner\.class=com\.example\.Mine is a Java class"):
        producer_config({"partitioner.class": "com.example.Mine"})


async def test_lines_before_a_malformed_one_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three valid lines came before it, and none was sent."""
    fake = FakeCluster()

    async def lines(prompt: str = "") -> AsyncIterator[bytes]:
        for line in (b"a:1", b"b:2", b"c:3", b"no separator"):
            yield line

    monkeypatch.setattr(_stdin, "stdin_lines", lines)
    reader = LineReader.of({"parse.key": "true", "key.separator": ":"})
    async with fake.client() as cluster:
        with pytest.raises(UsageError, match="No key separator found on line number 4"):
            await _produce(cluster, "t", reader, ProducerConfig(linger_ms=1_000), sync=False)
    assert fake.values("t") == [b"1", b"2", b"3"]


def test_local_cluster_warns_of_misspelt_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """`up --config`, and `barnabas.testing.Cluster(config=…)`."""
    LocalCluster(config={"num.partitons": "3", "num.partitions": "3"})
    assert capsys.readouterr().err == (
        "warning: num.partitons is not a known setting and is ignored; did you mean num.partitions?\n"
    )
