"""A line of the log is what the broker says, not what a peer makes it say."""

import io
import logging

from barnabas.core.log_format import OneLine


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
