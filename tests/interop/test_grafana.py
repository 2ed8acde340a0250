"""The dashboards, checked with Grafana's own schemas: its Python SDK reads each one and writes it back without a loss.

Grafana itself is in no registry that we can reach: not in Debian's or PyPI's, and npm has only its libraries.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SDK = "grafana-foundation-sdk"
PROGRAM = """
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

def compare(wanted, found, path):
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key, value in wanted.items():
            if key in found:
                compare(value, found[key], f"{path}/{key}")
            elif value not in (None, [], {}):
                print(f"{path}/{key} is nothing that Grafana knows")
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for number, (one, other) in enumerate(zip(wanted, found)):
            compare(one, other, f"{path}/{number}")
    elif wanted != found:
        print(f"{path}: {wanted!r} became {found!r}")

register_default_plugins()
dashboard = json.load(sys.stdin)
compare(dashboard, json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard))), "")
"""


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grafana")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, SDK],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"needs {SDK}: {done.stderr[-200:]}")
    return folder


def judge(sdk: Path, text: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(sdk)},
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("file", sorted((ROOT / "deploy/grafana").glob("*.json")), ids=lambda path: path.stem)
def test_grafana_knows_every_field_of_the_dashboard(sdk: Path, file: Path) -> None:
    text = file.read_text()
    assert judge(sdk, text) == ""
    assert (
        judge(sdk, text.replace('"gridPos"', '"gridPosition"', 1))
        == "/panels/0/gridPosition is nothing that Grafana knows\n"
    )
