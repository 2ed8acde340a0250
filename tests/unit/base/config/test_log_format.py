"""A peer cannot forge a line of the log."""

import io
import json
import logging

import pytest

from barnabas.base.log_format import FORMAT_VARIABLE, JsonLines, OneLine, log_to


def logged(message: str, *arguments: object, exc_info: BaseException | None = None) -> list[str]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine("[now] %(levelname)s %(message)s"))
    log = logging.Logger("test")
    log.addHandler(handler)
    log.warning(message, *arguments, exc_info=exc_info)
    return stream.getvalue().splitlines()


def test_name_with_line_ends_and_escapes_stays_in_its_line() -> None:
    forged = "x\r\n[now] CRITICAL all is lost\x1b[2J\x9b1m\u2028y"
    assert logged("client %s refused", forged) == [
        "[now] WARNING client x\\x0d\\x0a[now] CRITICAL all is lost\\x1b[2J\\x9b1m\\u2028y refused"
    ]


def test_no_line_of_a_traceback_looks_like_one_of_the_log() -> None:
    try:
        raise ValueError("x\n[now] CRITICAL all is lost")
    except ValueError as error:
        lines = logged("failed", exc_info=error)
    assert lines[0] == "[now] WARNING failed"
    assert all(line.startswith("    ") for line in lines[1:])


def test_words_of_other_languages_are_printed() -> None:
    assert logged("Überraschung für %s", "日本") == ["[now] WARNING Überraschung für 日本"]


def test_json_has_one_object_a_line_with_the_traceback_in_it() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    log = logging.Logger("barnabas.test")
    log.addHandler(handler)
    try:
        raise ValueError("x\ny")
    except ValueError:
        log.exception("client %s failed", "a\nb\x9b\u2028")
    [line] = stream.getvalue().splitlines()
    said = json.loads(line)
    assert line.isascii()
    assert (said["level"], said["logger"], said["message"]) == (
        "ERROR",
        "barnabas.test",
        "client a\nb\x9b\u2028 failed",
    )
    assert said["exception"].endswith("ValueError: x\ny")
    assert said["time"].endswith("Z")


@pytest.mark.parametrize(("wanted", "first"), [(None, "["), ("text", "["), ("json", "{"), ("yaml", "[")])
def test_environment_sets_the_log_format(wanted: str | None, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.WARNING)
    monkeypatch.delenv(FORMAT_VARIABLE, raising=False)
    if wanted is not None:
        monkeypatch.setenv(FORMAT_VARIABLE, wanted)
    stream = io.StringIO()
    log_to(stream, level=logging.INFO)
    assert ("is not valid, logging as text" in stream.getvalue()) == (wanted == "yaml")
    logging.getLogger("barnabas.test").info("here")
    assert stream.getvalue().splitlines()[-1].startswith(first)
