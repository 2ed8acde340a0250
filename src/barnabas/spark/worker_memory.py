"""What a Python worker of Spark need not look through: it collects garbage after every task, modules and all."""

import functools
import gc


@functools.cache
def keep_imports() -> None:
    """Once a process, when everything is imported: with numba and Arrow loaded a collection takes some 50 ms, else 5."""
    gc.freeze()
