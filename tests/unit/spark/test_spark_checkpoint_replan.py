"""`barnabas pipeline offsets` shows and changes a checkpoint, and a sink then writes the batches that are planned again."""

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.cli.main import app
from barnabas.spark import checkpoint, checkpoint_replan
from barnabas.spark.batch_identity import NotTheSameBatch
from barnabas.spark.checkpoint_files import CheckpointFiles, location_of
from barnabas.spark.sink_connection import close_connections
from barnabas.testing import Kafka
from barnabas.testing.cluster import Cluster
from tests.support.command_line import CliRunner, Result
from tests.unit.spark.spark_sink_query import Query, all_of

CONF = '{"batchWatermarkMs":0,"batchTimestampMs":7,"conf":{}}'


def make(folder: Path, *, committed: int, planned: int | None = None, sources: int = 1, is_named: bool = True) -> Path:
    """A checkpoint whose batch N ends at offset 10 * N + 10 of two partitions. `is_named`: a sink has written from it."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"q"}')
    for batch in range((committed if planned is None else planned) + 1):
        end = 10 * batch + 10
        lines = [json.dumps({"in": {"0": end, "1": end}})] * sources
        for name, text in (("offsets", "\n".join(["v1", CONF, *lines])), ("commits", 'v1\n{"nextBatchWatermarkMs":0}')):
            if name == "offsets" or batch <= committed:
                (folder / name / str(batch)).write_text(text)
                (folder / name / f".{batch}.crc").write_bytes(b"crc\0")
    if is_named:
        checkpoint.read_planned(str(folder))
    return folder


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", "offsets", *arguments])


def project(folder: Path) -> Path:
    (folder / "flows").mkdir(parents=True)
    (folder / "flows" / "orders.py").write_text("")
    (folder / "spark-pipeline.yml").write_text(
        "name: shop\nstorage: storage\nlibraries:\n  - glob:\n      include: flows/**\n"
    )
    return folder


def flow(shop: Path, name: str, *, target: str = "lake", start: int = 0, committed: int = 3) -> Path:
    return make(shop / "storage" / "_checkpoints" / target / name / str(start), committed=committed)


def batches(folder: Path, name: str) -> list[int]:
    return sorted(int(path.name) for path in (folder / name).iterdir() if path.name.isdigit())


def test_a_flow_is_shown_with_what_it_has_committed_and_what_it_has_planned(tmp_path: Path) -> None:
    here = make(tmp_path / "c", committed=2, planned=3)
    checkpoint.read_planned(str(here))
    checkpoint.note_repeated(str(here), 2, 40)
    shown = json.loads(run("show", "--checkpoint", str(here), "--json").stdout)
    assert shown["queryId"] == "q" and shown["checkpointId"]
    assert (shown["oldestBatch"], shown["committedBatch"], shown["plannedBatch"]) == (0, 2, 3)
    assert shown["committedOffsets"] == [{"in": {"0": 30, "1": 30}}]
    assert shown["plannedOffsets"] == [{"in": {"0": 40, "1": 40}}]
    assert (shown["repeated"]["batches"], shown["repeated"]["rows"]) == (1, 40)
    said = run("show", "--checkpoint", str(here)).stdout
    assert 'source 0: the next batch begins at {"in": {"0": 30, "1": 30}}' in said
    assert "came again after a restart and were not written twice: 1 batches, 40 rows; the last one was batch 2" in said


def test_a_rewind_takes_batches_back_and_keeps_them_aside(tmp_path: Path) -> None:
    here = make(tmp_path / "c", committed=4, planned=5)
    before = {name: (here / name).read_bytes() for name in ("offsets/3", "commits/4", "offsets/5")}
    first = checkpoint.read_planned(str(here)).checkpoint
    tried = run("rewind", "--checkpoint", str(here), "--query-is-stopped", "--to-batch", "2", "--dry-run")
    assert "would be removed: commits/3" in tried.stdout
    assert (batches(here, "offsets"), batches(here, "commits")) == ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4])
    done = run("rewind", "--checkpoint", str(here), "--query-is-stopped", "--batches", "2", "--json")
    assert (batches(here, "offsets"), batches(here, "commits")) == ([0, 1, 2], [0, 1, 2])
    assert not (here / "offsets" / ".3.crc").exists()
    kept = Path(json.loads(done.stdout)["replaced"])
    assert {name: (kept / name).read_bytes() for name in before} == before
    after = checkpoint.read_planned(str(here))
    assert after.checkpoint != first
    assert after.replaces == (first,)


def test_offsets_are_set_for_the_partitions_that_are_named(tmp_path: Path) -> None:
    here = make(tmp_path / "c", committed=1, planned=2)
    first = checkpoint.read_planned(str(here)).checkpoint
    done = run("set", "--checkpoint", str(here), "--query-is-stopped", "--to", '{"in":{"1":3}}')
    assert done.exit_code == 0, done.output
    assert (batches(here, "offsets"), batches(here, "commits")) == ([0, 1], [0, 1])
    written = (here / "offsets" / "1").read_text().split("\n")
    assert written[:2] == ["v1", CONF]
    assert json.loads(written[2]) == {"in": {"0": 20, "1": 3}}
    assert not (here / "offsets" / ".1.crc").exists(), "Hadoop would compare the file with the checksum of the old one"
    assert checkpoint.read_planned(str(here)).replaces == (first,)


def test_a_checkpoint_that_no_sink_has_named_is_changed_only_if_the_user_knows_the_sink(tmp_path: Path) -> None:
    """Spark's own sinks of files remember numbers of batches: they would leave the replayed records out without an error."""
    here = make(tmp_path / "c", committed=3, is_named=False)
    given = ["rewind", "--checkpoint", str(here), "--query-is-stopped"]
    assert "say --any-sink" in run(*given).stderr
    assert batches(here, "commits") == [0, 1, 2, 3]
    assert run(*given, "--any-sink").exit_code == 0
    assert batches(here, "commits") == [0, 1, 2]
    # A sink of this version then writes what an older one has decided under these numbers.
    assert checkpoint.read_planned(str(here)).replaces == (checkpoint.NAMELESS,)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["set", "--to", '{"in":{"9":3}}'], "does not read partition 9 of topic in"),
        (["set", "--to", '{"in":{"0":-1}}'], "the offsets are not topics with partitions"),
        (["set", "--to", "{"], "--to is not JSON"),
        (["set", "--to", "[1]"], "--to is not an object"),
        (["set"], "set needs --to"),
        (["set", "--to", '{"in":{"0":1}}', "--source", "2"], "it has the sources 0 to 0"),
        (["rewind", "--to-batch", "7"], "has the batches 0 to 3"),
        (["rewind", "--batches", "4"], "batch -1 is not one to go back to"),
        (["rewind", "--batches", "1", "--to-batch", "1"], "give one of them"),
        (["rewind", "--to", "{}"], '"[to]" can\'t be used with option "[rewind]"'),
        (["show", "--batches", "1"], '"[batches]" can\'t be used with option "[show]"'),
    ],
)
def test_impossible_changes_are_refused_and_change_nothing(tmp_path: Path, arguments: list[str], words: str) -> None:
    here = make(tmp_path / "c", committed=3)
    stopped = [] if arguments[0] == "show" else ["--query-is-stopped"]
    refused = run(*arguments, "--checkpoint", str(here), *stopped)
    assert refused.exit_code == 1
    assert words in refused.stderr
    assert batches(here, "offsets") == [0, 1, 2, 3] and not (here / "barnabas" / "replaced").exists()


def test_a_query_outside_of_a_project_is_not_changed_unless_the_user_says_that_it_is_stopped(tmp_path: Path) -> None:
    refused = run("rewind", "--checkpoint", str(make(tmp_path / "c", committed=3)))
    assert "stop it, and add --query-is-stopped" in refused.stderr


def test_several_sources_need_a_number(tmp_path: Path) -> None:
    here = make(tmp_path / "c", committed=1, sources=2)
    given = ["set", "--checkpoint", str(here), "--query-is-stopped", "--to", '{"in":{"0":1}}']
    assert "the query reads 2 sources: say which with --source, from 0 to 1" in run(*given).stderr
    assert run(*given, "--source", "1").exit_code == 0
    ends = [json.loads(line)["in"]["0"] for line in (here / "offsets" / "1").read_text().split("\n")[2:]]
    assert ends == [20, 1]


def test_a_query_with_state_is_not_set_back(tmp_path: Path) -> None:
    here = make(tmp_path / "c", committed=3)
    (here / "state" / "0").mkdir(parents=True)
    given = ["--checkpoint", str(here), "--query-is-stopped"]
    assert "the query keeps state" in run("rewind", *given).stderr
    assert "--full-refresh" in run("set", *given, "--to", '{"in":{"0":1}}').stderr
    assert run("set", *given, "--to", '{"in":{"0":1}}', "--keep-state").exit_code == 0
    # A batch that is planned and not committed has left no state that counts.
    (here / "offsets" / "4").write_text(f'v1\n{CONF}\n{{"in":{{"0":99}}}}')
    assert run("rewind", *given, "--to-batch", "3").exit_code == 0
    assert batches(here, "offsets") == [0, 1, 2, 3]


def test_a_copied_checkpoint_is_not_changed_before_its_sink_knows_it(tmp_path: Path) -> None:
    here = make(tmp_path / "c", committed=3)
    checkpoint.read_planned(str(here))
    here.rename(tmp_path / "d")
    refused = run("rewind", "--checkpoint", str(tmp_path / "d"), "--query-is-stopped")
    assert "it is a copy or was moved" in refused.stderr
    assert batches(tmp_path / "d", "offsets") == [0, 1, 2, 3]


def test_a_change_that_stops_half_way_leaves_the_old_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = make(tmp_path / "c", committed=3)
    first = checkpoint.read_planned(str(here)).checkpoint
    files = CheckpointFiles(location_of(str(here)))
    removed: list[str] = []

    def remove(self: CheckpointFiles, name: str) -> None:
        if removed:
            raise KeyboardInterrupt
        removed.append(name)

    monkeypatch.setattr(CheckpointFiles, "remove", remove)
    with pytest.raises(KeyboardInterrupt):
        checkpoint_replan.apply(files, checkpoint_replan.plan_rewind(files, batches=2))
    assert removed == ["commits/3"], "the last batch first, and its commit before its offsets"
    assert checkpoint.read_planned(str(here)).checkpoint == first


# -- flows of a project -----------------------------------------------------------------------------------------------


def test_the_checkpoint_of_a_flow_is_the_last_one_of_its_starts(tmp_path: Path) -> None:
    shop = project(tmp_path / "shop")
    flow(shop, "orders", start=0, committed=9)
    flow(shop, "orders", start=10, committed=1)
    flow(shop, "orders", target="topic", committed=5)
    ambiguous = run("show", "orders", str(shop)).stderr
    assert "several targets have a flow orders: give one of lake/orders, topic/orders" in ambiguous
    shown = json.loads(run("show", "lake/orders", str(shop), "--json").stdout)
    assert shown["committedBatch"] == 1
    assert "it has checkpoints of: lake/orders, topic/orders" in run("show", "order", str(shop)).stderr


def test_a_flow_is_not_changed_while_its_project_runs(tmp_path: Path) -> None:
    shop = project(tmp_path / "shop")
    here = flow(shop, "orders")
    (shop / ".barnabas").mkdir()
    with open(shop / ".barnabas" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "shop runs: stop it first" in run("rewind", "orders", str(shop)).stderr
        assert run("show", "orders", str(shop)).exit_code == 0
    assert batches(here, "commits") == [0, 1, 2, 3]
    assert run("rewind", "orders", str(shop)).exit_code == 0
    assert batches(here, "commits") == [0, 1, 2]


# -- the sink afterwards ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        yield cluster
    close_connections()


def test_a_sink_writes_the_batches_that_are_planned_again_and_then_each_once(
    cluster: Cluster, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(cluster.bootstrap, monkeypatch, kafka.name("query"))
    first = query.start()
    (query.checkpoint / "commits").mkdir()
    for batch in range(4):
        first.do(batch)
        (query.checkpoint / "commits" / str(batch)).write_text("v1\n{}")
    done = run("rewind", "--checkpoint", str(query.checkpoint), "--query-is-stopped", "--to-batch", "1")
    assert done.exit_code == 0, done.output
    query.plan(2, end=77)
    query.start().do(2)
    query.start().do(2)  # it comes again
    query.start().do(3)
    assert query.seen() == sorted(all_of(0, 1, 2, 3) + all_of(2, 3))
    # By hand it is refused, as before.
    query.forget(3)
    query.plan(3, end=78)
    with pytest.raises(NotTheSameBatch):
        query.start().do(3)
