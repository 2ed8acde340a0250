"""The command-line tools of Kafka 3.9.1 against our brokers: each does what it does against Kafka in ZooKeeper mode."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from barnabas.cli.local_cluster import LocalCluster
from tests.interop import maven

pytestmark = pytest.mark.usefixtures("java")
TOOLS = (
    "org.apache.kafka:kafka-tools:3.9.1",
    "org.apache.kafka:kafka_2.13:3.9.1",
    "org.slf4j:slf4j-reload4j:1.7.36",
)
TOOL_PACKAGE = "org.apache.kafka.tools"
NOW_MS = int(time.time() * 1000)


class Tools:
    """Runs a tool's main class."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self._log4j = folder / "log4j.properties"
        self._log4j.write_text(
            "log4j.rootLogger=ERROR, err\nlog4j.appender.err=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.err.Target=System.err\nlog4j.appender.err.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.err.layout.ConversionPattern=%p %m (%c)%n\n"
        )

    def __call__(self, main: str, *arguments: str, given: str = "", code: int | None = 0, server: bool = True) -> str:
        if server:
            arguments = ("--bootstrap-server", self.bootstrap, *arguments)
        if not main.startswith("kafka."):
            main = f"{TOOL_PACKAGE}.{main}"
        options = [
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Dlog4j.configuration=file:{self._log4j}",
        ]
        command = ["java", *options, "-cp", maven.classpath(*TOOLS), main, *arguments]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=90, check=False)
        if code is not None:
            assert done.returncode == code, f"{main} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def tools(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Tools:
    return Tools(cluster.bootstrap, tmp_path_factory.mktemp("tools"))


@pytest.fixture
def made(tools: Tools, topic: str) -> str:
    tools("TopicCommand", "--create", "--topic", topic, "--replica-assignment", "1:2:3,2:3:1,3:1:2")
    return topic


def fill(tools: Tools, topic: str, count: int = 300, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    producer = Producer({"bootstrap.servers": tools.bootstrap, "acks": "all", **settings})
    for number in range(count):
        producer.produce(topic, f"value {number}", f"key {number}", partition=number % 3, timestamp=NOW_MS + number)
    assert producer.flush(30) == 0


def test_topics_are_made_described_changed_listed_and_deleted(tools: Tools, topic: str) -> None:
    out = tools("TopicCommand", "--create", "--topic", topic, "--partitions", "3", "--replication-factor", "3",
                "--config", "retention.ms=1000000", "--config", "cleanup.policy=compact")  # fmt: skip
    assert f"Created topic {topic}." in out
    again = tools("TopicCommand", "--create", "--topic", topic, "--partitions", "1", code=1)
    assert f"Topic '{topic}' already exists." in again
    out = tools("TopicCommand", "--describe", "--topic", topic)
    assert re.search(rf"Topic: {topic}\s+TopicId: \S{{22}}\s+PartitionCount: 3\s+ReplicationFactor: 3\s+Configs: ", out)
    assert "cleanup.policy=compact" in out and "retention.ms=1000000" in out
    assert len(re.findall(r"Leader: [123]\s+Replicas: [123],[123],[123]\s+Isr: [123],[123],[123]", out)) == 3
    tools("TopicCommand", "--alter", "--topic", topic, "--partitions", "4")
    assert "PartitionCount: 4" in tools("TopicCommand", "--describe", "--topic", topic)
    fewer = tools("TopicCommand", "--alter", "--topic", topic, "--partitions", "2", code=1)
    assert "InvalidPartitionsException" in fewer
    for question in ("--under-replicated-partitions", "--unavailable-partitions", "--at-min-isr-partitions"):
        assert tools("TopicCommand", "--describe", "--topic", topic, question).strip() == ""
    assert topic in tools("TopicCommand", "--list").split()
    tools("TopicCommand", "--delete", "--topic", topic)
    assert topic not in tools("TopicCommand", "--list").split()
    assert "does not exist as expected" in tools("TopicCommand", "--describe", "--topic", topic, code=1)


def test_settings_of_topics_brokers_clients_and_users(tools: Tools, made: str) -> None:
    config = "kafka.admin.ConfigCommand"
    entity = ("--entity-type", "topics", "--entity-name", made)
    tools(config, "--alter", *entity, "--add-config", "retention.ms=5000000,segment.bytes=2000000")
    out = tools(config, "--describe", *entity)
    assert "retention.ms=5000000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5000000}" in out
    tools(config, "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms=" not in tools(config, "--describe", *entity)
    assert "retention.ms=604800000" in tools(config, "--describe", "--all", *entity)
    assert "Unknown" in tools(config, "--alter", *entity, "--add-config", "no.such=1", code=1)
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    tools(config, "--alter", *broker, "--add-config", "log.cleaner.backoff.ms=20000")
    assert "log.cleaner.backoff.ms=20000" in tools(config, "--describe", *broker)
    tools(config, "--alter", *broker, "--delete-config", "log.cleaner.backoff.ms")
    default = ("--entity-type", "brokers", "--entity-default")
    tools(config, "--alter", *default, "--add-config", "log.retention.ms=90000000")
    assert "log.retention.ms=90000000" in tools(config, "--describe", *default)
    tools(config, "--alter", *default, "--delete-config", "log.retention.ms")
    assert "broker.id=1" in tools(config, "--describe", "--all", *broker)


def test_quotas(tools: Tools, topic: str) -> None:
    config = "kafka.admin.ConfigCommand"
    client = ("--entity-type", "clients", "--entity-name", f"c-{topic}")
    tools(config, "--alter", *client, "--add-config", "producer_byte_rate=1000000")
    assert "producer_byte_rate=1000000.0" in tools(config, "--describe", *client)
    tools(config, "--alter", *client, "--delete-config", "producer_byte_rate")
    user = ("--entity-type", "users", "--entity-name", f"u-{topic}")
    tools(config, "--alter", *user, "--add-config", "request_percentage=50.5,controller_mutation_rate=10")
    out = tools(config, "--describe", *user)
    assert "request_percentage=50.5" in out and "controller_mutation_rate=10.0" in out
    tools(config, "--alter", *user, "--delete-config", "request_percentage,controller_mutation_rate")
    address = ("--entity-type", "ips", "--entity-name", "10.9.8.7")
    tools(config, "--alter", *address, "--add-config", "connection_creation_rate=20")
    assert "connection_creation_rate=20.0" in tools(config, "--describe", *address)
    tools(config, "--alter", *address, "--delete-config", "connection_creation_rate")


def test_scram_credentials(tools: Tools, topic: str) -> None:
    config = "kafka.admin.ConfigCommand"
    user = ("--entity-type", "users", "--entity-name", f"u-{topic}")
    tools(config, "--alter", *user, "--add-config", "SCRAM-SHA-256=[iterations=8192,password=secret]")
    assert "SCRAM-SHA-256=iterations=8192" in tools(config, "--describe", *user)
    tools(config, "--alter", *user, "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM" not in tools(config, "--describe", *user)


def test_console_producer_and_consumer(tools: Tools, made: str) -> None:
    lines = [f"k{number}:v{number}" for number in range(20)]
    tools("kafka.tools.ConsoleProducer", "--topic", made, "--property", "parse.key=true", "--property",
          "key.separator=:", "--compression-codec", "zstd", given="\n".join(lines))  # fmt: skip
    out = tools("consumer.ConsoleConsumer", "--topic", made, "--from-beginning", "--max-messages", "20", "--property",
                "print.key=true", "--property", "key.separator=:", "--group", made, "--timeout-ms", "20000")  # fmt: skip
    assert sorted(line for line in out.splitlines() if ":" in line) == sorted(lines)
    assert "Processed a total of 20 messages" in out


def test_consumer_groups_are_listed_described_reset_and_deleted(tools: Tools, made: str) -> None:
    fill(tools, made, 90)
    tools("consumer.ConsoleConsumer", "--topic", made, "--from-beginning", "--max-messages", "90", "--group", made,
          "--timeout-ms", "20000")  # fmt: skip
    command = "consumer.group.ConsumerGroupCommand"
    assert made in tools(command, "--list").split()
    assert re.search(rf"{made}\s+Classic\s+Empty", tools(command, "--list", "--type", "--state") or "")
    out = tools(command, "--describe", "--group", made)
    assert len(re.findall(rf"{made}\s+{made}\s+[012]\s+30\s+30\s+0\s", out)) == 3
    assert re.search(
        rf"{made}\s+127\.0\.0\.1:\d+\s+\([123]\)\s+Empty\s+0", tools(command, "--describe", "--group", made, "--state")
    )
    assert "no active members" in tools(command, "--describe", "--group", made, "--members")
    out = tools(command, "--reset-offsets", "--group", made, "--topic", made, "--shift-by", "-10", "--execute")
    assert len(re.findall(rf"{made}\s+{made}\s+[012]\s+20", out)) == 3
    out = tools(
        command,
        "--reset-offsets",
        "--group",
        made,
        "--all-topics",
        "--to-datetime",
        "2000-01-01T00:00:00.000",
        "--execute",
    )
    assert len(re.findall(rf"{made}\s+{made}\s+[012]\s+0\b", out)) == 3
    out = tools(command, "--delete-offsets", "--group", made, "--topic", f"{made}:0")
    assert "Request succeed for deleting offsets" in out
    assert "Deletion of requested consumer groups" in tools(command, "--delete", "--group", made)
    assert "does not exist" in tools(command, "--describe", "--group", made, code=None)


def test_offsets_records_and_log_dirs(tools: Tools, made: str, tmp_path: Path) -> None:
    fill(tools, made, 300)
    shell = ("--topic", made)
    latest = {f"{made}:{number}:100" for number in range(3)}
    assert set(tools("GetOffsetShell", *shell).split()) == latest
    assert set(tools("GetOffsetShell", *shell, "--time", "earliest").split()) == {line[:-3] + "0" for line in latest}
    assert set(tools("GetOffsetShell", *shell, "--time", "max-timestamp").split()) == {
        line[:-3] + "99" for line in latest
    }
    assert set(tools("GetOffsetShell", *shell, "--time", "-4").split()) == {line[:-3] + "0" for line in latest}
    file = tmp_path / "records.json"
    file.write_text(json.dumps({"partitions": [{"topic": made, "partition": 0, "offset": 40}], "version": 1}))
    assert "low_watermark: 40" in tools("DeleteRecordsCommand", "--offset-json-file", str(file))
    assert f"{made}:0:40" in tools("GetOffsetShell", *shell, "--time", "-2").split()
    out = tools("LogDirsCommand", "--describe", "--broker-list", "1,2", "--topic-list", made)
    answer = json.loads(out.splitlines()[-1])
    assert [broker["broker"] for broker in answer["brokers"]] == [1, 2]
    parts = answer["brokers"][0]["logDirs"][0]["partitions"]
    assert {part["partition"] for part in parts} == {f"{made}-{number}" for number in range(3)}
    assert all(part["offsetLag"] == 0 and not part["isFuture"] and part["size"] > 0 for part in parts)


def test_reassignment_and_leader_election(tools: Tools, made: str, tmp_path: Path) -> None:
    fill(tools, made)
    plan = tmp_path / "plan.json"
    moves = [
        {"topic": made, "partition": number, "replicas": replicas}
        for number, replicas in enumerate([[3, 1], [1, 2], [2]])
    ]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    command = "reassign.ReassignPartitionsCommand"
    out = tools(command, "--reassignment-json-file", str(plan), "--execute", "--throttle", "50000000")
    assert "Successfully started partition reassignments" in out
    for _ in range(20):
        out = tools(command, "--reassignment-json-file", str(plan), "--verify")
        if out.count("is completed") == 3:
            break
    assert out.count("is completed") == 3
    assert "Clearing broker-level throttles" in out
    assert "No partition reassignments found" in tools(command, "--list")
    out = tools("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions", code=None)
    out = tools("TopicCommand", "--describe", "--topic", made)
    assert [re.findall(r"Leader: (\d)", out), re.findall(r"Replicas: (\S+)", out)] == [
        ["3", "1", "2"],
        ["3,1", "1,2", "2"],
    ]
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"topics": [{"topic": made}], "version": 1}))
    out = tools(command, "--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3", "--generate")
    assert "Proposed partition reassignment configuration" in out


def test_transactions_are_listed_described_and_aborted(tools: Tools, made: str) -> None:
    producer = Producer({"bootstrap.servers": tools.bootstrap, "transactional.id": made})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(made, b"hanging", partition=0)
    producer.flush(30)
    command = "TransactionsCommand"
    listed = tools(command, "list")
    assert re.search(rf"{made}\s+[123]\s+\d+\s+Ongoing", listed)
    out = tools(command, "describe", "--transactional-id", made)
    assert re.search(rf"{made}\s+\d+\s+0\s+Ongoing\s+60000\s", out) and f"{made}-0" in out
    out = tools(command, "describe-producers", "--topic", made, "--partition", "0")
    [row] = [line.split() for line in out.splitlines() if line[:1].isdigit()]
    start = row[-1]
    assert start == "0"
    tools(command, "abort", "--topic", made, "--partition", "0", "--start-offset", start)
    out = tools(command, "describe-producers", "--topic", made, "--partition", "0")
    assert [line.split()[-1] for line in out.splitlines() if line[:1].isdigit()] == ["None"]
    tools(command, "find-hanging", "--broker-id", "1")


def test_api_versions_cluster_id_and_features(tools: Tools) -> None:
    out = tools("kafka.admin.BrokerApiVersionsCommand")
    assert out.count("(id: ") == 3
    assert "LeaderAndIsr(4): " in out
    # Clients skip keys that they do not know: those of Kafka 4.1 and later (88 to 92), and our own from 10000 on.
    unknown = {int(key) for key in re.findall(r"UNKNOWN\((\d+)\)", out)}
    assert {key for key in unknown if key < 10_000} <= {88, 89, 90, 91, 92}
    assert "UNKNOWN(10000)" in out
    out = tools("ClusterTool", "cluster-id", "--bootstrap-server", tools.bootstrap, server=False)
    assert re.search(r"Cluster ID: \S{22}", out)
    out = tools("FeatureCommand", "describe")
    assert "UNKNOWN" not in out


def test_perf_tools_and_verifiable_clients(tools: Tools, made: str, tmp_path: Path) -> None:
    out = tools("ProducerPerformance", "--topic", made, "--num-records", "20000", "--record-size", "100",
                "--throughput", "-1", "--producer-props", f"bootstrap.servers={tools.bootstrap}", "acks=all",
                server=False)  # fmt: skip
    assert "20000 records sent" in out
    out = tools("ConsumerPerformance", "--topic", made, "--messages", "20000", "--group", f"perf-{made}")
    assert int(out.strip().splitlines()[-1].split(",")[4]) >= 20000
    out = tools("VerifiableProducer", "--topic", made, "--max-messages", "200")
    assert '"sent":200,"acked":200' in out.replace(" ", "")
    out = tools("VerifiableConsumer", "--topic", made, "--group-id", f"v-{made}", "--max-messages", "20200",
                "--reset-policy", "earliest")  # fmt: skip
    assert '"name":"shutdown_complete"' in out
    out = tools("EndToEndLatency", tools.bootstrap, made, "100", "1", "50", server=False)
    assert "Percentiles" in out


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    """A cluster of one broker with two log directories and an authorizer."""
    folder = tmp_path_factory.mktemp("guarded")
    config = {
        "log.dirs": f"{folder}/a,{folder}/b",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with LocalCluster(brokers=1, config=config) as cluster:
        yield Tools(cluster.bootstrap, folder)


def test_acls_are_added_listed_and_removed(guarded: Tools, tools: Tools, topic: str) -> None:
    command = "kafka.admin.AclCommand"
    entry = ("--allow-principal", "User:alice", "--operation", "Read", "--topic", topic)
    assert f"name={topic}, patternType=LITERAL" in guarded(command, "--add", *entry)
    guarded(command, "--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--producer", "--topic",
            f"{topic}-", "--resource-pattern-type", "prefixed", code=None)  # fmt: skip
    listed = guarded(command, "--list", "--topic", topic)
    assert "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)" in listed
    guarded(command, "--remove", "--force", *entry)
    assert "alice" not in guarded(command, "--list", "--topic", topic)
    assert "No Authorizer is configured" in tools(command, "--list", code=None)


def test_replica_moves_to_another_log_directory(guarded: Tools, topic: str, tmp_path: Path) -> None:
    guarded("TopicCommand", "--create", "--topic", topic, "--partitions", "3")
    fill(guarded, topic)

    def homes() -> dict[str, str]:
        answer = json.loads(guarded("LogDirsCommand", "--describe", "--topic-list", topic).splitlines()[-1])
        dirs = answer["brokers"][0]["logDirs"]
        return {
            part["partition"]: each["logDir"] for each in dirs for part in each["partitions"] if not part["isFuture"]
        }

    before = homes()
    source = before[f"{topic}-0"]
    target = source[:-1] + ("b" if source.endswith("a") else "a")
    plan = tmp_path / "plan.json"
    move = {"topic": topic, "partition": 0, "replicas": [1], "log_dirs": [target]}
    plan.write_text(json.dumps({"version": 1, "partitions": [move]}))
    command = "reassign.ReassignPartitionsCommand"
    guarded(command, "--reassignment-json-file", str(plan), "--execute")
    for _ in range(10):
        out = guarded(command, "--reassignment-json-file", str(plan), "--verify")
        if "completed successfully" in out:
            break
    assert "completed successfully" in out
    assert homes() == before | {f"{topic}-0": target}
    assert f"{topic}:0:100" in guarded("GetOffsetShell", "--topic", topic).split()
