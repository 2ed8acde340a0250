"""Shared by commands that serve HTTP in the foreground: they end with their parent, log to stderr, and announce their URL."""

import logging
import sys

from barnabas.base.host.parent import die_with_parent
from barnabas.base.log_format import log_to


def begin() -> None:
    die_with_parent()
    log_to(sys.stderr, level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def announce(what: str, url: str) -> None:
    """Print the line that the parent process waits for."""
    sys.stdout.write(f"ready {what}={url}\n")
    sys.stdout.flush()
