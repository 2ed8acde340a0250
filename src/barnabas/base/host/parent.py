"""End a child process when its parent ends."""

import os
import signal
import sys

ENVIRONMENT_VARIABLE = "BARNABAS_PARENT_DEATH_SIGNAL"

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """If the environment asks for it, have the kernel send SIGTERM to this process when the thread that started it ends.

    Has an effect only on Linux. Call it first in `main`. It removes the variable, so that children of this process do not
    see it.
    """
    if os.environ.pop(ENVIRONMENT_VARIABLE, "") != "1" or not sys.platform.startswith("linux"):
        return
    import ctypes  # slow to load, and rarely needed

    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl(PR_SET_PDEATHSIG): {os.strerror(errno)}")
    # The parent may have died before the request reached the kernel.
    if os.getppid() != parent or parent == 1:
        os.kill(os.getpid(), signal.SIGTERM)
