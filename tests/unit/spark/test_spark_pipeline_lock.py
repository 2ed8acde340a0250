"""Only one process at a time may have a project open: the catalog of its Spark can be opened once only."""

import os
import subprocess
from pathlib import Path

import pytest

from barnabas.spark.pipelines.failures import PipelineFailed
from barnabas.spark.pipelines.project import Project
from barnabas.spark.pipelines.session import alone


@pytest.fixture
def shop(tmp_path: Path) -> Project:
    (tmp_path / ".barnabas").mkdir()
    return Project(tmp_path, tmp_path / "spark-pipeline.yml", "shop", "file:///storage", None, None, {}, ())


def test_run_waits_for_the_spark_of_one_that_was_killed(shop: Project, capsys: pytest.CaptureFixture[str]) -> None:
    held = alone(shop)
    jvm = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(held,))
    os.close(held)  # the driver is gone
    with pytest.raises(PipelineFailed, match="another process has shop"):
        alone(shop, patience_s=0.0)
    assert "waiting until another process leaves shop" in capsys.readouterr().err
    assert jvm.stdin is not None
    jvm.stdin.close()
    held = alone(shop, patience_s=60.0)
    jvm.wait()
    os.close(held)


def test_project_is_free_when_its_run_has_ended(shop: Project, capsys: pytest.CaptureFixture[str]) -> None:
    os.close(alone(shop))
    os.close(alone(shop, patience_s=0.0))
    assert capsys.readouterr().err == ""
