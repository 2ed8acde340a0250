"""What `ps` and `top` call this process. Linux only, and nothing elsewhere.

Children that were forked without an exec all carry the command line of who forked them: an operator could not tell brokers
apart. The kernel shows whatever is in the memory that held the arguments at the start.
"""

import sys
from pathlib import Path

#: `comm`, which `top` shows, holds no more.
_COMM_BYTES = 15
#: Of /proc/self/stat, counted from the field after the name in parentheses: where the arguments begin and end.
_ARG_START, _ARG_END = 45, 46


def set_title(title: str, *, short: str) -> None:
    """`title` for `ps`, as far as there is room; `short` for `top`."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes  # nobody else should pay for loading it

    Path("/proc/self/comm").write_bytes(short.encode()[:_COMM_BYTES])
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    room = end - start
    if start and room > 1:
        # One byte less than there is: memory that does not end with a zero would be read on into the environment.
        ctypes.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)
