"""When Python looks for garbage in circles, in a process that serves."""

import gc
from typing import Final

#: A message about thousands of partitions makes as many objects, and with Python's own thresholds each of them has the
#: whole heap searched for garbage: pauses of a tenth of a second in the middle of a fail-over. Garbage in circles is rare
#: here, so it is looked for rarely.
_THRESHOLDS: Final = (20_000, 20, 50)


def settle() -> None:
    """Once all is up: what is left of starting up will never be garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
