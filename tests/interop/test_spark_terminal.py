"""A pipeline as a person runs it: on a terminal, against a cluster with users and TLS, with its live view."""

import json
import subprocess
from pathlib import Path

import pytest

from barnabas.cli.local_cluster import LocalCluster
from barnabas.testing import Cluster
from tests.interop.test_terminal import BARNABAS, Terminal, terminal

__all__ = ["terminal"]  # pytest takes the fixture from here

CODE = """\
from pyspark import pipelines as dp
from pyspark.sql import functions as F
from barnabas.spark.pipelines import sinks, sources
from barnabas.spark.pipelines.expectations import expect, expect_or_drop

sinks.topic("orders", bootstrap="{bootstrap}", partitions=1).create("orders_topic")

@dp.append_flow(target="orders_topic")
def publish():
    rows = sources.synthetic({{"number": "sequence:1", "price": "uniform:0..1"}}, rows_per_second=20).stream()
    return rows.select(F.col("price").cast("string").alias("key"), F.to_json(F.struct("*")).alias("value"))

@dp.table
@expect("even", "n % 2 = 0")
@expect_or_drop("costs something", "key = '1'")
def received():
    rows = sources.topic("orders", bootstrap="{bootstrap}").stream()
    return rows.selectExpr("cast(key as string) key", "cast(get_json_object(cast(value as string), '$.number') as long) n")
"""


def project_for(cluster: LocalCluster, folder: Path) -> Path:
    """Create a project whose spec names a file with the login: the code does not contain it."""
    subprocess.run([BARNABAS, "pipeline", "init", str(folder), "--bootstrap-server", cluster.bootstrap], check=True)
    (folder / "transformations" / "orders.py").write_text(CODE.format(bootstrap=cluster.bootstrap))
    spec = folder / "spark-pipeline.yml"
    settings = f"configuration:\n  barnabas.client.config: {cluster.command_config('admin')}\n"
    spec.write_text(spec.read_text().replace("configuration:\n", settings))
    return folder


@pytest.mark.timeout(1800)  # four Sparks, one after the other, on what may be a busy machine
def test_a_project_is_validated_run_watched_stopped_and_asked(terminal: Terminal, java: None, tmp_path: Path) -> None:
    with Cluster(brokers=1, secure=True) as cluster:
        project = project_for(cluster, tmp_path / "shop")
        code = project / "transformations" / "orders.py"

        terminal.type(f"{BARNABAS} pipeline validate {project} --master 'local[2]'; echo code $?")
        screen = terminal.see(r"code \d", 400)
        assert "shop is valid: transformations/orders.py" in screen
        assert "code 0" in screen
        terminal.clear()
        good = code.read_text()
        code.write_text(good + "\nsinks.nowhere()\n")
        terminal.type(f"{BARNABAS} pipeline validate {project} --master 'local[2]'; echo code $?")
        screen = terminal.see(r"code \d", 400)
        assert "code 1" in screen
        assert f"orders.py:{len(good.splitlines()) + 2}: AttributeError" in screen.replace("\n", "")
        assert "Traceback" not in screen
        code.write_text(good)

        terminal.clear()
        terminal.type(f"{BARNABAS} pipeline run {project} --continuous --master 'local[2]'")
        terminal.see(r"shop continuous on local\[2\]: RUNNING", 500)
        terminal.see(r"received\W+RUNNING\W+\d", 300)
        terminal.see(r"received\W+received\.costs something\W+drop\W+[\d,]+\W+[1-9]", 300)
        terminal.see(r"received\W+received\.even\W+keep\W+[\d,]+\W+[1-9]", 300)
        terminal.press("C-c")
        terminal.done(timeout_s=300)
        screen = terminal.screen(history=True)
        assert "shop continuous on local[2]: STOPPED" in screen
        assert "Traceback" not in screen

        terminal.clear()
        terminal.type(f"{BARNABAS} pipeline status {project}")
        terminal.see(r"consumer group shop-\S+ at \S+: [\d,]+ behind", 60)
        asked = [BARNABAS, "pipeline", "status", str(project), "--json"]
        for more in ([], ["--command-config", str(cluster.command_config("admin"))]):
            done = subprocess.run([*asked, *more], capture_output=True, text=True, check=True, timeout=60)
            document = json.loads(done.stdout)
            [group] = document["groups"]
            assert group["lag"] is not None, group
            expected = document["flows"]["received"]["expectations"]
            assert expected["received.even"]["action"] == "keep"
            counts = expected["received.costs something"]
            assert counts["failed"] > 0
            assert counts["passed"] > 0
            # A record that one expectation drops does not reach the other.
            assert expected["received.even"]["passed"] + expected["received.even"]["failed"] in (
                counts["passed"],
                counts["passed"] + counts["failed"],
            )
        code.unlink()  # now the spec names no existing file
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 1
        assert "libraries name no file" in done.stderr
