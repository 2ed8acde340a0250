"""Entry point of `barnabas`.

Most of the time of `barnabas up` passes in imports: its own, and those of the process that forks its brokers. So that process
starts first, and both import at the same time.
"""

import gc
import sys
from collections.abc import Callable

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
    """Import what finds and carries out the command."""
    if arguments and arguments[0] == "up" and not FORKS_LATER & set(arguments):
        from barnabas.cli.fork_server import fork_server

        fork_server()
    from barnabas.cli.main import main as find_and_run

    return find_and_run
