"""Keeps imported modules out of the garbage collection that a Python worker of Spark does after every task."""

import functools
import gc


@functools.cache
def keep_imports() -> None:
    """Call once per process, after all imports: with numba and Arrow loaded a collection takes some 50 ms, without them 5."""
    gc.freeze()
