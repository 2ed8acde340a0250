"""Settings of Python's cyclic garbage collector for server processes."""

import gc
from typing import Final

#: A message about thousands of partitions creates as many objects. With Python's default thresholds each message would cause
#: a collection of the whole heap, with pauses of a tenth of a second in the middle of a fail-over. Cyclic garbage is rare here,
#: so collections are rare, too.
_THRESHOLDS: Final = (20_000, 20, 50)


def settle() -> None:
    """Call after the start: freeze the objects of the start, which never become garbage, and set the thresholds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
