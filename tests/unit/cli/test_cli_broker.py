"""How `barnabas broker` gets its settings."""

import pytest

from barnabas.cli import broker


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

    def run(file: str | None, overrides: list[str], *, with_environment: bool) -> None:
        seen.append((file, overrides, with_environment))

    monkeypatch.setattr(broker, "_run", run)
    broker.main(arguments)
    assert seen == [expected]


def test_neither_file_nor_environment_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        broker.main([])
    assert ended.value.code == 2
    assert "or --environment" in capsys.readouterr().err
