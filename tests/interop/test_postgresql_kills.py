"""The SQL sink is killed at every step of a batch, on a real PostgreSQL, and starts again: each row is there once."""

import multiprocessing
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.spark.pipelines.sinks.sql_table import STEPS
from tests.interop import postgresql_writer as writer
from tests.interop.postgresql import ask, server

processes = multiprocessing.get_context("forkserver")
MODES = {"append": {}, "upsert": {"mode": "upsert", "key": "id"}}


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with server() as uri:
        processes.set_forkserver_preload([writer.__name__])
        yield uri


class Query:
    """A streaming query that writes into a table, one process for each time it runs."""

    def __init__(self, uri: str, folder: Path, mode: str, table: str) -> None:
        self.id = str(uuid.uuid4())
        self.checkpoint = folder / "checkpoint"
        self.options = {"uri": uri, "table": table, "checkpointLocation": str(self.checkpoint), **MODES[mode]}

    def run(self, batch: int, dies_at: str = "") -> None:
        writer.plan(self.checkpoint, self.id, batch)
        process = processes.Process(target=writer.write, args=(self.options, self.id, batch, dies_at))
        process.start()
        process.join(60)
        assert process.exitcode == (-signal.SIGKILL if dies_at else 0), f"{dies_at or 'no kill'}: {process.exitcode}"


def stages(uri: str) -> list[tuple[object, ...]]:
    return ask(uri, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'barnabas_stage%'")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step_and_started_again_the_sink_has_each_row_once(
    uri: str, tmp_path: Path, step: str, mode: str
) -> None:
    table = f"killed_{uuid.uuid4().hex[:8]}"
    query = Query(uri, tmp_path, mode, table)
    for _ in range(2):  # Spark counts attempts from 0 in each run: the second meets what the first left
        query.run(0, dies_at=step)
    query.run(0)
    query.run(1, dies_at=step)
    query.run(1)
    query.run(2)
    found = [row[0] for row in ask(uri, f"SELECT id FROM {table} ORDER BY id")]
    assert found == list(range(3 * writer.TASKS * writer.ROWS_PER_TASK))
    assert stages(uri) == []
    assert ask(uri, f"SELECT batch_id FROM barnabas_sink_progress WHERE target = 'table public.{table}'") == [(2,)]


def test_a_batch_passes_every_step_in_their_order(uri: str, tmp_path: Path) -> None:
    """The list that the test above goes through is whole."""
    query = Query(uri, tmp_path, "append", "stepped")
    writer.plan(query.checkpoint, query.id, 0)
    assert tuple(dict.fromkeys(writer.write(query.options, query.id, 0))) == STEPS
