"""Where `barnabas` begins: long-running processes start at once, everything else goes through typer.

typer and pydantic take 200 ms and 15 MB. A process that other programs start by the dozen, and that stays, does without them:
its module has `main(arguments)` next to the `command` that shows its help. `up` needs them, but what it waits for longest are
the imports of the process that forks its brokers: that one starts first, and both import at the same time.
"""

import gc
import importlib
import sys
from collections.abc import Callable
from functools import partial

DIRECT = {"broker": "barnabas.cli.broker", "zookeeper": "barnabas.cli.zookeeper"}
#: With these `up` starts no cluster, or only after it has forked itself.
FORKS_LATER = frozenset({"--help", "--detach"})
#: How a shell reports a program that Ctrl-C ended.
INTERRUPTED = 130


def main() -> None:
    try:
        _run(sys.argv[1:])
    except KeyboardInterrupt:
        # Commands handle Ctrl-C themselves; this one came while they were being imported, which takes a second on a busy
        # machine, and nothing has begun that would need an end.
        sys.exit(INTERRUPTED)


def _run(arguments: list[str]) -> None:
    gc.disable()  # nothing that is imported is garbage, and to look for it takes an eighth of the time
    try:
        command = _command(arguments)
    finally:
        gc.enable()
    command()


def _command(arguments: list[str]) -> Callable[[], object]:
    """What the arguments ask for, imported."""
    if arguments and arguments[0] in DIRECT and "--help" not in arguments:
        return partial(importlib.import_module(DIRECT[arguments[0]]).main, arguments[1:])
    if arguments and arguments[0] == "up" and not FORKS_LATER & set(arguments):
        from barnabas.cli.fork_server import fork_server

        fork_server()
    from barnabas.cli.main import main as typer_main

    return typer_main
