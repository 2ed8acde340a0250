"""Entry point of `barnabas`: starts long-running processes at once, and all other commands through typer.

typer and pydantic take 200 ms and 15 MB. Processes that stay, and that other programs start by the dozen, avoid them: their
module has `main(arguments)` next to the `command` that shows the help. `up` needs them, but mostly waits for the imports of
the process that forks its brokers. So that process starts first, and both import at the same time.
"""

import gc
import importlib
import sys
from collections.abc import Callable
from functools import partial

DIRECT = {"broker": "barnabas.cli.broker", "zookeeper": "barnabas.cli.zookeeper"}
#: With these options `up` starts no cluster, or only after it has forked itself.
FORKS_LATER = frozenset({"--help", "--detach"})
#: The exit status that a shell reports after Ctrl-C.
INTERRUPTED = 130


def main() -> None:
    try:
        _run(sys.argv[1:])
    except KeyboardInterrupt:
        # Commands handle Ctrl-C themselves. This one came during their import, which takes a second on a busy machine. No work
        # has begun, so there is nothing to clean up.
        sys.exit(INTERRUPTED)


def _run(arguments: list[str]) -> None:
    gc.disable()  # imports create no garbage, and collecting takes an eighth of the time
    try:
        command = _command(arguments)
    finally:
        gc.enable()
    command()


def _command(arguments: list[str]) -> Callable[[], object]:
    """Import the command that the arguments name."""
    if arguments and arguments[0] in DIRECT and "--help" not in arguments:
        return partial(importlib.import_module(DIRECT[arguments[0]]).main, arguments[1:])
    if arguments and arguments[0] == "up" and not FORKS_LATER & set(arguments):
        from barnabas.cli.fork_server import fork_server

        fork_server()
    from barnabas.cli.main import main as typer_main

    return typer_main
