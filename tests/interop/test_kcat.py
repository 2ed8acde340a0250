"""kcat, as its users use it: list, produce, consume, offsets by time, every codec."""

import json
import shutil
import subprocess
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.cli.local_cluster import LocalCluster


@pytest.fixture(scope="module")
def kcat() -> str:
    """Return the program, from Debian's package if it is missing."""
    if shutil.which("kcat") is None and shutil.which("apt-get") is not None:
        subprocess.run(["apt-get", "install", "-y", "-qq", "kcat"], capture_output=True, timeout=180, check=False)
    found = shutil.which("kcat")
    if found is None:
        pytest.skip("needs kcat")
    return found


class Kcat:
    def __init__(self, program: str, bootstrap: str) -> None:
        self._command = [program, "-b", bootstrap, "-m", "20"]

    def __call__(self, *arguments: str, given: str = "") -> str:
        done = subprocess.run(
            [*self._command, *arguments], input=given, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def run(kcat: str, cluster: LocalCluster) -> Kcat:
    return Kcat(kcat, cluster.bootstrap)


@pytest.fixture
def made(cluster: LocalCluster, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 3)])[topic].result(30)
    return topic


def test_lists_brokers_and_topics(run: Kcat, made: str) -> None:
    listing = json.loads(run("-L", "-J"))
    assert [broker["id"] for broker in listing["brokers"]] == [1, 2, 3]
    found = next(each for each in listing["topics"] if each["topic"] == made)
    for part in found["partitions"]:
        assert len(part["replicas"]) == len(part["isrs"]) == 3
        assert part["leader"] == part["replicas"][0]["id"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kcat_consumes_its_records_in_every_codec(run: Kcat, made: str, codec: str) -> None:
    lines = [f"key{number}:{'value' * 40}{number}" for number in range(500)]
    run("-P", "-t", made, "-p", "0", "-K", ":", "-z", codec, "-X", "acks=all", given="\n".join(lines))
    assert run("-C", "-t", made, "-p", "0", "-o", "beginning", "-e", "-q", "-K", ":").splitlines() == lines


def test_headers_nulls_and_tails_are_kept(run: Kcat, made: str) -> None:
    run("-P", "-t", made, "-p", "1", "-K", ":", "-Z", "-H", "h=1", given="gone:")
    run("-P", "-t", made, "-p", "1", "-K", ":", given="a:1\nb:2")
    first, *rest = [json.loads(line) for line in run("-C", "-t", made, "-p", "1", "-e", "-q", "-J").splitlines()]
    assert (first["key"], first["payload"], first["headers"]) == ("gone", None, ["h", "1"])
    assert [(record["key"], record["offset"]) for record in rest] == [("a", 1), ("b", 2)]
    assert run("-C", "-t", made, "-p", "1", "-o", "-1", "-e", "-q") == "2\n"


def test_offsets_are_found_by_time(run: Kcat, made: str) -> None:
    run("-P", "-t", made, "-p", "0", given="early\n")
    [stamp] = run("-C", "-t", made, "-p", "0", "-e", "-q", "-f", "%T\n").splitlines()
    time.sleep(0.005)  # the client's clock gives the records different timestamps
    run("-P", "-t", made, "-p", "0", given="late\n")
    answers = {at: run("-Q", "-t", f"{made}:0:{at}").strip() for at in ("-2", "-1", stamp, str(int(stamp) + 1))}
    assert [answer.rpartition(" ")[2] for answer in answers.values()] == ["0", "2", "0", "1"]
    assert run("-C", "-t", made, "-p", "0", "-o", f"s@{int(stamp) + 1}", "-e", "-q") == "late\n"


def test_group_member_reads_every_partition_and_goes_on_where_it_was(run: Kcat, made: str) -> None:
    run("-P", "-t", made, given="".join(f"{number}\n" for number in range(100)))
    group = ("-G", f"{made}-group", "-X", "auto.offset.reset=earliest", "-e", "-q", made)
    assert sorted(map(int, run(*group).split())) == list(range(100))
    run("-P", "-t", made, given="more\n")
    assert run(*group) == "more\n"


def test_transaction_is_seen_when_it_is_committed(run: Kcat, made: str) -> None:
    run("-P", "-t", made, "-p", "0", "-X", f"transactional.id={made}", given="one\ntwo\n")
    assert run("-C", "-t", made, "-p", "0", "-e", "-q", "-X", "isolation.level=read_committed") == "one\ntwo\n"
