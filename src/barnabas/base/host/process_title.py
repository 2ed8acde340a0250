"""The name of this process in `ps` and `top`. Linux only.

Children that are forked without an exec all have their parent's command line, so an operator could not tell brokers apart.
The kernel shows the memory that held the arguments at the start.
"""

from pathlib import Path

from barnabas.base.host.kernel import IS_LINUX

#: The length limit of `comm`, which `top` shows.
_COMM_BYTES = 15
#: Fields of /proc/self/stat with the addresses of the arguments, counted from the field after the name in parentheses.
_ARG_START, _ARG_END = 45, 46


def set_title(title: str, *, short: str) -> None:
    """Set `title` for `ps`, as far as there is room, and `short` for `top`."""
    if not IS_LINUX:
        return
    import ctypes  # slow to load, and rarely needed

    Path("/proc/self/comm").write_bytes(short.encode()[:_COMM_BYTES])
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    room = end - start
    if start and room > 1:
        # Use one byte less than the room: if the memory did not end with a zero, readers would continue into the environment.
        ctypes.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)
