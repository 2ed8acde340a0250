"""`barnabas up --tables`: Spark beside the brokers. `tests/scenarios/spark` tests that it fills tables."""

from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.cli.local_cluster import TABLES, LocalCluster
from barnabas.cli.main import app
from barnabas.testing import wait_until
from tests.support.command_line import CliRunner

WITHOUT_JAVA = "there is no /nowhere/bin/java. Spark needs Java"


def test_spark_that_cannot_start_says_why_and_the_cluster_is_there(
    new_cluster: Callable[..., LocalCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    cluster = new_cluster(brokers=1, data=tmp_path, tables=True)
    log = tmp_path / f"{TABLES}.log"
    wait_until(lambda: log.exists() and WITHOUT_JAVA in log.read_text(), timeout_s=60)
    assert cluster.member(1).exit_code is None


def test_up_refuses_tables_without_java_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    result = CliRunner().invoke(app, ["up", "--port", "0", "--tables"])
    assert result.exit_code == 1
    assert WITHOUT_JAVA in result.output
