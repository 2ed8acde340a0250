"""Shared by all commands: how they report failures."""

import re
import shutil
import sys
import textwrap
from typing import Final

from barnabas.base.errors import BarnabasError


class UsageError(BarnabasError):
    """Options that do not go together. The message says what would work."""


#: Control characters but for line ends and tabs, and those that reverse the direction of text.
_UNSAFE: Final = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]")


def printable(text: str) -> str:
    """The text for a terminal: names come from strangers, and an escape sequence in one would act on the terminal."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def complain(line: str) -> None:
    """Write one line to stderr, with log lines below it. On a narrow terminal, fold it between words."""
    lines = line.split("\n")
    if sys.stderr.isatty():
        lines = [printable(each) for each in lines]
        width = max(40, shutil.get_terminal_size().columns)
        lines = [
            textwrap.fill(each, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
            for each in lines
        ]
    sys.stderr.write("\n".join(lines) + "\n")


def warn(message: str) -> None:
    complain(f"warning: {message}")
