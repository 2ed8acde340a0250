"""The command line: `barnabas up --schema-registry`, and `barnabas schemas` from a file to another registry and back."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest

from barnabas.cli.main import app
from barnabas.testing import Cluster, ClusterFailed
from tests.scenarios.registry.conftest import DEADLINE_S, Registry, config_for, running
from tests.scenarios.registry.test_api import A_B, AB, A, record
from tests.support.command_line import CliRunner

Run = Callable[..., str]


@pytest.fixture
def run(registry: Registry) -> Run:
    """Run `barnabas schemas` in this process and return its output. `status`: the expected exit status."""

    def run(*arguments: str, status: int = 0, url: str = registry.url) -> str:
        result = CliRunner().invoke(app, ["schemas", *arguments, "--url", url])
        assert result.exit_code == status, result.output
        return result.output

    return run


def test_schemas_from_registering_to_deleting(own_registry: Registry, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(A)
    run = partial(run, url=own_registry.url)
    assert run("list") == ""
    assert run("register", "orders", str(file)) == "orders version 1 id 1\n"
    assert run("list") == "orders\n"
    assert run("get", "orders") == A + "\n"
    assert run("get", "--id", "1") == A + "\n"
    assert json.loads(run("get", "orders", "--version", "1", "--json"))["id"] == 1
    file.write_text(AB)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in run("check", "orders", str(file), status=1)
    refused = run("register", "orders", str(file), status=1)
    assert "(error code 409)" in refused
    file.write_text(A_B)
    assert run("check", "orders", str(file)) == "compatible\n"
    run("register", "orders", str(file))
    assert run("list", "orders") == "1\n2\n"
    assert run("delete", "orders", "--version", "1") == "orders: 1 deleted\n"
    assert run("list", "orders", "--deleted") == "1\n2\n"
    assert run("delete", "orders") == "orders: 2 deleted\n"
    assert run("delete", "orders", "--permanent") == "orders: 1, 2 gone for good\n"
    assert own_registry.get("/subjects", deleted="true") == []


def test_exported_schemas_are_imported_with_their_ids(
    cluster: Cluster, own_registry: Registry, run: Run, tmp_path: Path
) -> None:
    with running(config_for(cluster)) as source:
        _export_and_import(source, own_registry, run, tmp_path / "all.jsonl")


def _export_and_import(source: Registry, target: Registry, run: Run, file: Path) -> None:
    source.register("export-inner", record(("x", "int"), name="Inner"))
    outer = source.register(
        "export-outer",
        record(("i", "Inner"), name="Outer"),
        references=[{"name": "Inner", "subject": "export-inner", "version": 1}],
    )
    source.register(":.export:s", '"int"')
    source.put("/config/export-outer", {"compatibility": "FULL"})
    source.register("export-gone", '"string"')
    source.delete("/subjects/export-gone")
    run("export", str(file), url=source.url)
    assert "subjects" in run("import", str(file), url=target.url)
    assert target.get(f"/schemas/ids/{outer['id']}") == source.get(f"/schemas/ids/{outer['id']}")
    assert target.get("/subjects", deleted="true") == source.get("/subjects", deleted="true")
    assert target.get("/subjects") == source.get("/subjects")
    assert target.get("/config/export-outer") == {"compatibilityLevel": "FULL"}
    assert target.register("export-outer", outer_again := record(("i", "int"), name="Outer2"))[:2] == (409, 409)
    assert target.register("new", outer_again)["id"] > outer["id"], "ids go on after those that were imported"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["forget"], "'forget' is not an action; use one of register, get"),
        (["regster"], "did you mean register?"),
        (["get"], "say a subject, or --id"),
        (["register", "s", "none.avsc"], "error: none.avsc: No such file or directory"),
        (["register", "s", __file__], "give --type AVRO"),
        (["check", "s", "-", "--type", "avro", "--reference", "x"], "write NAME=SUBJECT:VERSION"),
    ],
)
def test_mistakes_are_reported_with_a_remedy(run: Run, arguments: list[str], message: str) -> None:
    assert message in run(*arguments, status=1)


def test_an_unreachable_registry_is_reported(run: Run) -> None:
    expected = "error: no registry can be reached: http://127.0.0.1:1: Connection refused"
    assert expected in run("list", status=1, url="http://127.0.0.1:1")
    assert "is not the address of a registry" in run("list", status=1, url="localhost:8081")


def test_up_prints_where_the_registry_is() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "barnabas", "up", "--brokers", "1", "--port", "0", "--schema-registry"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready, bootstrap, registry = process.stdout.readline().split()
        assert ready == "ready" and bootstrap.startswith("bootstrap=127.0.0.1:")
        name, _, url = registry.partition("=")
        assert name == "schema-registry"
        assert httpx.get(f"{url}/subjects", timeout=DEADLINE_S, trust_env=False).json() == []
    finally:
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        if process.stdout is not None:
            process.stdout.close()


def test_a_cluster_without_a_registry_says_how_to_get_one(cluster: Cluster) -> None:
    with pytest.raises(ClusterFailed, match="schema_registry=True"):
        _ = cluster.schema_registry_url
