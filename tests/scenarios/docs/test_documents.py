"""Every command of these documents runs, against a cluster that is started as the document says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.cli.local_cluster import LocalCluster
from tests.scenarios.docs.runner import TIMEOUT_S, blocks_of, first_missing, run_document

ROOT = Path(__file__).parents[3]
#: What the document gives to `barnabas up`.
STARTED_WITH = {
    "README.md": {},
    "docs/quickstart.md": {},
    "docs/inside.md": {"barnabas.metrics.port": "0", "replica.high.watermark.checkpoint.interval.ms": "500"},
    "docs/operating.md": {},
    "docs/console.md": {},
}
#: With a console beside the brokers.
WITH_CONSOLE = {"docs/console.md"}


@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("name", STARTED_WITH)
def test_every_command_of_the_document_runs(
    name: str, tmp_path: Path, new_cluster: Callable[..., LocalCluster]
) -> None:
    has_console = name in WITH_CONSOLE
    cluster = new_cluster(brokers=3, data=tmp_path / "data", config=STARTED_WITH[name], console=has_console)
    addresses = {"127.0.0.1:9092": cluster.address(1)}
    if has_console:
        addresses["http://127.0.0.1:8080"] = cluster.console_url
    run_document(ROOT / name, tmp_path, addresses)


@pytest.mark.parametrize("name", STARTED_WITH)
def test_document_has_something_to_run(name: str) -> None:
    assert blocks_of((ROOT / name).read_text())


def test_output_is_compared_line_by_line_in_order() -> None:
    assert first_missing(["a…c", "[1, 2]"], ["x", "abc", "[1, 2]"]) is None
    assert first_missing(["b", "a"], ["a", "b"]) == "a"


def test_failing_block_names_its_line(tmp_path: Path) -> None:
    document = tmp_path / "d.md"
    document.write_text("# t\n\n```sh run\ntrue\n```\n\n```sh run\necho before; false\n```\n")
    with pytest.raises(AssertionError, match=r"d\.md:7: [\s\S]*before"):
        run_document(document, tmp_path, {})
