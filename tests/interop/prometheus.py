"""Debian's Prometheus with the rules that we ship."""

import json
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from barnabas.testing import wait_until
from tests.interop.debian import program

RULES = Path(__file__).parents[2] / "deploy/prometheus/barnabas.rules.yml"


@dataclass
class Prometheus:
    url: str

    def get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def ask(self, expression: str) -> list[Any]:
        found: list[Any] = self.get("/api/v1/query", query=expression)["result"]
        return found

    def firing(self) -> set[str]:
        return {
            each["labels"]["alertname"] for each in self.get("/api/v1/alerts")["alerts"] if each["state"] == "firing"
        }


@contextmanager
def running_prometheus(targets: Sequence[str], folder: Path) -> Iterator[Prometheus]:
    """Run it for brokers at these addresses, with the rules as shipped, but without their waiting times of minutes."""
    lines = [line for line in RULES.read_text().splitlines() if not line.strip().startswith("for:")]
    (folder / "rules.yml").write_text("\n".join(lines))
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml]\n"
        f"scrape_configs: [{{job_name: barnabas, static_configs: [{{targets: {json.dumps(targets)}}}]}}]\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    command = [program("prometheus"), "--config.file=prometheus.yml", f"--web.listen-address={address}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--storage.tsdb.path={folder}/data"], cwd=folder, stdout=log, stderr=log)
    try:
        prometheus = Prometheus(f"http://{address}")
        wait_until(lambda: _sees(prometheus, len(targets)), 120, what=f"Prometheus, see {folder}/log")
        yield prometheus
    finally:
        process.terminate()
        process.wait(30)


def _sees(prometheus: Prometheus, number: int) -> bool:
    try:
        return len(prometheus.ask('up{job="barnabas"} == 1')) == number
    except OSError:
        return False
