"""Every command of these documents runs against a cluster that is started as the document says."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from barnabas.cli.local_cluster import LocalCluster
from tests.scenarios.broker_metrics import metrics_url
from tests.scenarios.docs.programs import NAMED_BY_THE_README, commands_of, not_named
from tests.scenarios.docs.runner import TIMEOUT_S, blocks_of, first_missing, run_document

ROOT = Path(__file__).parents[3]
#: Document -> arguments for `barnabas up`.
STARTED_WITH = {
    "README.md": {},
    "docs/quickstart.md": {},
    "docs/inside.md": {"barnabas.metrics.port": "0", "replica.high.watermark.checkpoint.interval.ms": "500"},
    "docs/operating.md": {"barnabas.metrics.port": "0"},
    "docs/console.md": {},
}
#: Documents whose cluster has a console.
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
    if "barnabas.metrics.port" in STARTED_WITH[name]:
        addresses["http://127.0.0.1:9404"] = metrics_url(cluster).removesuffix("/metrics")
    run_document(ROOT / name, tmp_path, addresses)


@pytest.mark.parametrize("name", STARTED_WITH)
def test_document_has_something_to_run(name: str) -> None:
    assert blocks_of((ROOT / name).read_text())


DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md"))
)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_document_calls_only_programs_that_it_or_the_readme_names(name: str) -> None:
    unknown = [f"{name}:{each.line}: {each.program}" for each in not_named((ROOT / name).read_text())]
    assert not unknown, "name it in the text, in `…`, or use a program that README.md tells to install"


#: Documents about past releases and the next one.
OF_RELEASES = {"CHANGELOG.md", "docs/releasing.md"}


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name not in OF_RELEASES])
def test_document_installs_from_a_clone_as_long_as_there_is_no_release(name: str) -> None:
    """pip finds no `barnabas` elsewhere, and would install any package that takes the name."""
    text = (ROOT / name).read_text().replace("Once barnabas is installed, `pip install 'barnabas[spark]'`", "")
    assert re.findall(r"pip install (?:--\S+ )*'?barnabas\b(?!-\*).*", text) == []


def test_readme_names_the_packages_that_documents_count_on() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [package for package in NAMED_BY_THE_README if f"`{package}`" not in readme] == []


def test_programs_of_a_shell_block_are_found() -> None:
    block = (
        "```sh\nA=1 until curl -s \"$(jq . f)\" | grep '|x'; do wget a \\\n && go; done  # nc\n"
        "cat <<'END'\nhelm\nEND\ncd ssh\n```\n"
    )
    assert [each.program for each in commands_of(block)] == ["curl", "jq", "grep", "wget", "go", "cat"]
    assert [(each.line, each.program) for each in not_named(block)] == [(2, "curl"), (2, "jq"), (2, "wget"), (2, "go")]


class _NotInSync(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(503)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def not_in_sync() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _NotInSync) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("script", ["wait_in_sync", "wait_for_replicas"])
def test_waiting_for_a_broker_that_does_not_answer_does_not_end(script: str, tmp_path: Path, not_in_sync: str) -> None:
    """The script once took "cannot connect" as "all replicas are in sync", and the next broker was restarted."""
    text = (ROOT / "docs/operating.md").read_text().replace("127.0.0.1:9092", "127.0.0.1:1")
    found = re.search(rf"cat > {script} <<'END'\n(.*?)^END$", text, re.MULTILINE | re.DOTALL)
    assert found
    (tmp_path / script).write_text(found.group(1))
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for address in (not_in_sync, "http://127.0.0.1:1", ""):
        command = ["bash", script, *([address] if address else [])]
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run(command, cwd=tmp_path, env=os.environ | path, timeout=3, capture_output=True, check=False)


def test_output_is_compared_line_by_line_in_order() -> None:
    assert first_missing(["a…c", "[1, 2]"], ["x", "abc", "[1, 2]"]) is None
    assert first_missing(["b", "a"], ["a", "b"]) == "a"


def test_failing_block_names_its_line(tmp_path: Path) -> None:
    document = tmp_path / "d.md"
    document.write_text("# t\n\n```sh run\ntrue\n```\n\n```sh run\necho before; false\n```\n")
    with pytest.raises(AssertionError, match=r"d\.md:7: [\s\S]*before"):
        run_document(document, tmp_path, {})
