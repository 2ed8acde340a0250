"""A child process that must not outlive the process that started it."""

import os
import signal
import sys

ENVIRONMENT_VARIABLE = "BARNABAS_PARENT_DEATH_SIGNAL"

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """If the environment asks for it, have the kernel end this process with SIGTERM when the thread that started it ends.

    Linux only, and nothing elsewhere. Call it first thing in `main`; the variable is taken away, so that it does not
    reach children of ours.
    """
    if os.environ.pop(ENVIRONMENT_VARIABLE, "") != "1" or not sys.platform.startswith("linux"):
        return
    import ctypes  # nobody else should pay for loading it

    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl(PR_SET_PDEATHSIG): {os.strerror(errno)}")
    # The parent may have died before the kernel knew that we care.
    if os.getppid() != parent or parent == 1:
        os.kill(os.getpid(), signal.SIGTERM)
