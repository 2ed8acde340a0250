"""How `barnabas broker` gets its settings."""

import sys
from collections.abc import Mapping, Sequence

import pytest

from barnabas.base import log_format
from barnabas.base.config import properties
from barnabas.broker import process
from barnabas.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a.properties"], ("a.properties", [], False)),
        (["a.properties", "--override", "x=1", "--override=y=2"], ("a.properties", ["x=1", "y=2"], False)),
        (["--environment"], (None, [], True)),
        (["--environment", "a.properties"], ("a.properties", [], True)),
    ],
)
def test_file_environment_and_overrides(
    arguments: list[str], expected: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[object, ...]] = []

    def load(file: str | None, overrides: Sequence[str], *, with_environment: bool) -> dict[str, str]:
        seen.append((file, list(overrides), with_environment))
        return {"broker.id": "7"}

    def run_broker(settings: Mapping[str, str]) -> int:
        assert settings["broker.id"] == "7"
        return 3

    monkeypatch.setattr(properties, "load", load)
    monkeypatch.setattr(process, "run_broker", run_broker)
    monkeypatch.setattr(log_format, "log_to", lambda *_, **__: None)
    assert run(["broker", *arguments]) == 3
    assert seen == [expected]


def test_neither_file_nor_environment_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["broker"]) == 2
    assert "or --environment" in capsys.readouterr().err


def test_broker_and_zookeeper_import_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are started by the dozen."""
    import subprocess

    script = (
        "import sys; from barnabas.cli.main import load; load('broker'); load('zookeeper'); "
        "print([each for each in sys.modules if each.startswith('barnabas.client') or each in ('rich', 'asyncio')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
