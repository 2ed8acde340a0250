"""The CPU time that a process has used: unlike wall-clock time it does not depend on how busy the machine is."""

import os
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def computed_s(pid: int) -> float:
    """Return the CPU time of the main thread, which runs the event loop, in steps of some milliseconds."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND
