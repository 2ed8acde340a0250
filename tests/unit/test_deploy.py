"""The files in deploy/ name metrics and settings that exist, and each alert has a section that says what to do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts import generate_dashboards

from barnabas.base.config.catalog import broker_setting
from barnabas.base.config.properties import from_environment
from barnabas.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "deploy/prometheus/barnabas.rules.yml").read_text())["groups"][0]["rules"]
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
#: Prometheus's own, for each address that it scrapes.
OF_PROMETHEUS = {"up"}
TABLE_ROW = re.compile(r"^\| `([a-z_]+)` \|([^|]*)\|", re.MULTILINE)


def documented() -> dict[str, set[str]]:
    """Metrics and their labels. A test beside the broker holds docs/metrics.md against what a broker offers."""
    rows = TABLE_ROW.findall((ROOT / "docs/metrics.md").read_text())
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


def metrics_of(expression: str) -> set[str]:
    """Names that stand where PromQL has a metric: not functions, labels or words of the language."""
    plain = re.sub(r"\{[^}]*\}|\[[^]]*\]|\b(?:by|on|group_right|group_left|without)\s*\([^)]*\)", " ", expression)
    words = re.findall(r"[a-z_]\w*(?!\w*\s*\()", plain)
    return {word for word in words if word not in ("or", "and", "unless", "by", "on", "group_right")}


def labels_of(expression: str) -> set[str]:
    matched = {label for part in re.findall(r"\{([^}]*)\}", expression) for label in re.findall(r"(\w+)\s*[=!]", part)}
    grouped = {label for part in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for label in re.findall(r"\w+", part)}
    return matched | grouped


def unknown(expression: str) -> set[str]:
    family = documented()
    missing = set()
    labels = {"job", "instance", "le"}
    for metric in metrics_of(expression):
        plain = next(
            (each for each in (metric, re.sub(r"_(bucket|sum|count|total)$", "", metric)) if each in family), None
        )
        if plain is not None:
            labels |= family[plain]
        elif metric not in OF_PROMETHEUS:
            missing.add(metric)
    return missing | (labels_of(expression) - labels)


def panels(dashboard: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboard.read_text())["panels"]
    return found


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_ask_for_metrics_and_labels_that_exist(dashboard: Path) -> None:
    asked = [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]
    assert asked
    assert {expression: unknown(expression) for expression in asked if unknown(expression)} == {}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_legends_name_labels_that_the_lines_have(dashboard: Path) -> None:
    for panel in panels(dashboard):
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            outer = re.match(
                r"(?:sum|max)(?: by \(([^)]*)\))? \(|histogram_quantile\([^,]*, sum by \(([^)]*)\)", target["expr"]
            )
            if outer:
                kept = re.findall(r"\w+", (outer[1] or "") + " " + (outer[2] or ""))
                assert named <= set(kept), target["expr"]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_do_not_lie_on_each_other(dashboard: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(dashboard):
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= generate_dashboards.COLUMNS
        taken |= cells


def test_dashboards_are_as_their_script_writes_them() -> None:
    assert generate_dashboards.main(["--check"]) == 0
    assert {path.stem for path in DASHBOARDS} == set(generate_dashboards.DASHBOARDS)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_asks_for_metrics_that_exist_and_says_what_to_do(rule: dict[str, Any]) -> None:
    assert unknown(rule["expr"]) == set()
    assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
    assert rule["labels"]["severity"] in ("warning", "critical")


def test_runbook_has_a_section_for_each_alert_and_no_other() -> None:
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in RULES]


def test_unknown_metrics_and_labels_are_found() -> None:
    assert unknown("rate(kafka_server_nothing_total[5m]) > 0") == {"kafka_server_nothing_total"}
    assert unknown('sum by (colour) (kafka_log_size_bytes{topic="t"})') == {"colour"}
    assert (
        unknown('histogram_quantile(0.9, sum by (le) (rate(barnabas_event_loop_lag_ms_bucket{job="b"}[5m]))) > 1')
        == set()
    )


def unknown_settings(variables: set[str]) -> list[str]:
    return [name for name in from_environment(dict.fromkeys(variables, "")) if broker_setting(name) is None]


@pytest.mark.parametrize("file", ["compose.yaml", "container/Containerfile", "helm/barnabas/templates/brokers.yaml"])
def test_variables_of_containers_are_settings(file: str) -> None:
    named = set(re.findall(r"\bKAFKA_[A-Z_]+[A-Z]\b", (ROOT / "deploy" / file).read_text()))
    assert len(named) >= 3
    assert unknown_settings(named) == []


def test_composed_containers_run_commands_that_exist_with_volumes_of_their_own() -> None:
    services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    assert {service["command"][0] for service in services.values() if "command" in service} <= set(COMMANDS)
    brokers = [service["environment"] for service in services.values() if "environment" in service]
    assert len({each["KAFKA_BROKER_ID"] for each in brokers}) == len(brokers) == 3
    assert all(service["read_only"] for service in services.values())


def test_settings_of_the_chart_exist() -> None:
    values = yaml.safe_load((ROOT / "deploy/helm/barnabas/values.yaml").read_text())
    assert [name for name in values["settings"] if broker_setting(name) is None] == []


def test_definitions_for_contributors_call_what_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    jobs = yaml.safe_load(workflow)["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert ".ci/run" in runs and "make interop" in runs
    called = {target for run in runs for target in re.findall(r"\bmake ([a-z]+)", run)}
    assert [target for target in sorted(called) if f"\n{target}: " not in makefile] == []
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    for form in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(form.read_text())
