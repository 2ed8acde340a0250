"""End a child process when its parent ends."""

import os

from barnabas.base.host import kernel

ENVIRONMENT_VARIABLE = "BARNABAS_PARENT_DEATH_SIGNAL"


def die_with_parent() -> None:
    """If the environment asks for it, end this process with SIGTERM when the one that started it ends.

    Call it first in `main`. It removes the variable, so that children of this process do not see it.
    """
    if os.environ.pop(ENVIRONMENT_VARIABLE, "") == "1":
        kernel.end_with_parent()
