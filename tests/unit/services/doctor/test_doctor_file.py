"""`barnabas doctor FILE`: settings and machines that are wrong, and ones that are not."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.base.config.broker import BrokerConfig
from barnabas.broker.zookeeper_client.ensemble import members_of
from barnabas.cli.main import app
from barnabas.services.doctor.files import (
    HostFacts,
    LogDirFacts,
    examine,
    examine_together,
    look,
    short_lived,
)
from barnabas.services.doctor.finding import Finding, Severity, in_order, some
from tests.support.command_line import CliRunner

GIB = 1 << 30
HEALTHY = HostFacts(log_dirs=(LogDirFacts("/data/kafka", writable=True, total_bytes=100 * GIB, free_bytes=50 * GIB),))
SOUND = {
    "broker.id": "1",
    "zookeeper.connect": "zk1:2181,zk2:2181/k",
    "listeners": "PLAINTEXT://0.0.0.0:9092",
    "advertised.listeners": "PLAINTEXT://kafka1:9092",
    "log.dirs": "/data/kafka",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
}


def found(
    settings: dict[str, str] | None = None, facts: HostFacts = HEALTHY, *, brokers: int | None = 3
) -> dict[str, Finding]:
    """By the name of the check."""
    config = BrokerConfig.parse(SOUND | (settings or {}))
    return {finding.check: finding for finding in examine("f", config, facts, brokers=brokers)}


def dir_facts(**changes: object) -> HostFacts:
    return HostFacts(log_dirs=(replace(HEALTHY.log_dirs[0], **changes),))  # type: ignore[arg-type]


def test_sound_settings_on_a_healthy_machine_have_no_finding() -> None:
    assert found() == {}


@pytest.mark.parametrize("path", ["/tmp/kafka-logs", "/tmp", "/var/tmp/x", "/dev/shm/k"])
def test_log_dirs_that_a_reboot_empties_are_warned_of(path: str) -> None:
    assert found(facts=dir_facts(path=path))["log-dirs-in-tmp"].severity is Severity.WARNING


def test_folder_that_only_begins_like_tmp_is_not_short_lived() -> None:
    assert not short_lived("/tmpfs-not/kafka")


def test_folder_that_cannot_be_written_to_is_an_error() -> None:
    assert found(facts=dir_facts(writable=False))["log-dir-not-writable"].severity is Severity.ERROR


@pytest.mark.parametrize(("total", "free"), [(100 * GIB, 4 * GIB), (10 * GIB, GIB - 1)])
def test_disk_with_little_room_is_warned_of(total: int, free: int) -> None:
    assert "left" in found(facts=dir_facts(total_bytes=total, free_bytes=free))["disk-nearly-full"].message


def test_open_files_limit_is_held_against_the_partitions_that_are_there() -> None:
    facts = dir_facts(partitions=2000, files=8000)
    assert found(facts=replace(facts, open_files_max=1024))["open-files-limit"].severity is Severity.ERROR
    assert found(facts=replace(facts, open_files_max=8500))["open-files-limit"].severity is Severity.WARNING
    assert "open-files-limit" not in found(facts=replace(facts, open_files_max=20_000))


def test_offsets_topic_with_one_replica_is_wrong_with_several_brokers_and_worth_a_note_with_unknown_many() -> None:
    settings = {"offsets.topic.replication.factor": "1"}
    assert found(settings, brokers=3)["internal-topic-replicas-one"].severity is Severity.WARNING
    assert found(settings, brokers=None)["internal-topic-replicas-one"].severity is Severity.NOTE
    alone = {"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"}
    assert found(settings | alone, brokers=1) == {}


def test_internal_topic_that_needs_more_brokers_than_there_are_is_an_error() -> None:
    assert found(brokers=2)["internal-topic-replicas-too-many"].severity is Severity.ERROR


@pytest.mark.parametrize(
    ("replicas", "in_sync", "check"),
    [("1", "2", "min-isr-above-replicas"), ("2", "2", "min-isr-equals-replicas"), ("1", "1", "default-replicas-one")],
)
def test_min_insync_replicas_is_held_against_the_replication_factor(replicas: str, in_sync: str, check: str) -> None:
    assert check in found({"default.replication.factor": replicas, "min.insync.replicas": in_sync})


def test_transaction_log_with_fewer_copies_than_its_min_isr_is_reported() -> None:
    wrong = found({"transaction.state.log.replication.factor": "1"})["min-isr-above-replicas"]
    assert "transaction.state.log.min.isr=1" in wrong.advice


def test_unclean_election_is_warned_of() -> None:
    assert "unclean-election" in found({"unclean.leader.election.enable": "true"})


def test_unknown_setting_is_wrong_and_names_what_was_meant() -> None:
    wrong = found({"log.retention.hour": "1"})["setting-unknown"]
    assert wrong.severity is Severity.WARNING
    assert "did you mean log.retention.hours?" in wrong.message


def test_setting_without_effect_is_a_note() -> None:
    assert found({"num.network.threads": "8"})["setting-without-effect"].severity is Severity.NOTE


def test_advertised_listener_that_cannot_be_reached_is_an_error() -> None:
    facts = replace(HEALTHY, unreachable={"kafka1:9092": "the name does not resolve"})
    assert "does not resolve" in found(facts=facts)["advertised-listener-unreachable"].message


def test_loopback_address_is_noted_where_there_are_several_brokers() -> None:
    settings = {"advertised.listeners": "PLAINTEXT://localhost:9092"}
    assert found(settings)["advertised-listener-loopback"].severity is Severity.NOTE


def test_zookeeper_is_an_error_when_no_host_answers_and_a_warning_when_one_does() -> None:
    one = replace(HEALTHY, unreachable={"zk1:2181": "refused"})
    both = replace(HEALTHY, unreachable={"zk1:2181": "refused", "zk2:2181": "refused"})
    assert found(facts=one)["zookeeper-unreachable"].severity is Severity.WARNING
    assert found(facts=both)["zookeeper-unreachable"].severity is Severity.ERROR


def test_files_of_one_cluster_share_zookeeper_and_no_broker_id() -> None:
    one, other = BrokerConfig.parse(SOUND), BrokerConfig.parse(SOUND | {"zookeeper.connect": "elsewhere:2181"})
    assert {finding.check for finding in examine_together({"a": one, "b": other})} == {
        "broker-id-twice",
        "zookeeper-differs",
    }


def test_members_of_zookeeper_have_the_default_port_and_no_path() -> None:
    assert members_of("a:1, b ,[::1]:3/x/y") == [("a", 1), ("b", 2181), ("::1", 3)]


def test_most_severe_finding_comes_first_and_none_twice() -> None:
    note = Finding(Severity.NOTE, "n", "f", "m", "a")
    error = Finding(Severity.ERROR, "e", "f", "m", "a")
    assert in_order([note, error, note]) == [error, note]


def test_long_list_is_cut() -> None:
    assert some(range(7)) == "0, 1, 2, 3, 4 and 2 more"


def test_look_counts_partitions_and_their_files_and_finds_closed_ports(tmp_path: Path) -> None:
    for name in ("orders-0", "orders-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "00000000000000000000.log").touch()
    (tmp_path / "meta.properties").touch()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        own = {"zookeeper.connect": f"127.0.0.1:{port}", "log.dirs": str(tmp_path)}
        own["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
        own["listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
        facts = look(BrokerConfig.parse(SOUND | own))
    assert (facts.log_dirs[0].partitions, facts.log_dirs[0].files) == (2, 2)
    assert facts.log_dirs[0].writable
    assert facts.unreachable == {f"127.0.0.1:{port}": "Connection refused"}


def test_refused_advertised_port_counts_only_while_the_broker_listens(tmp_path: Path) -> None:
    with socket.socket() as closed, socket.create_server(("127.0.0.1", 0)) as running:
        closed.bind(("127.0.0.1", 0))
        advertised = f"127.0.0.1:{closed.getsockname()[1]}"
        own = {
            "log.dirs": str(tmp_path),
            "zookeeper.connect": f"127.0.0.1:{running.getsockname()[1]}",
            "advertised.listeners": f"PLAINTEXT://{advertised}",
        }
        up = own | {"listeners": f"PLAINTEXT://127.0.0.1:{running.getsockname()[1]}"}
        down = own | {"listeners": f"PLAINTEXT://{advertised}"}
        assert advertised in look(BrokerConfig.parse(SOUND | up)).unreachable
        assert look(BrokerConfig.parse(SOUND | down)).unreachable == {}


def test_tool_says_what_is_wrong_in_json_and_exits_with_one(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("process.roles=broker\n")
    result = CliRunner().invoke(app, ["doctor", str(file), "--json"])
    assert result.exit_code == 1
    [finding] = json.loads(result.stdout)["findings"]
    assert finding["check"] == "settings-refused" and "KRaft" in finding["message"]


def test_tool_without_anything_to_check_says_what_to_name() -> None:
    result = CliRunner().invoke(app, ["doctor"], env={"BARNABAS_BOOTSTRAP_SERVER": ""})
    assert result.exit_code == 1
    assert "--bootstrap-server" in result.stderr
