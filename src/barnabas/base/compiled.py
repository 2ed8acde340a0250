"""`kernel`: numba's `njit` with its machine code cached on disk, so that a new process compiles nothing.

Numba caches beside the source or in the user's cache directory. Spark executors and brokers often may write to neither (a
package installed by root, a container without a home). Then a directory below the temporary one is used, or else no cache.
"""

import os
import stat
import tempfile
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core import cgutils, types
from numba.core.caching import NullCache
from numba.extending import intrinsic
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., object])

#: Inside a kernel: converts an integer to 64 bits.
int64 = cast("Callable[[int], int]", numba.int64)


def kernel(function: F) -> F:
    """Compile at the first call, without the GIL. Later processes load the machine code."""
    try:
        return _compiled(function, keep=True)
    except RuntimeError as error:  # numba: "cannot cache function ...: no locator available"
        if "locator" not in str(error):
            raise
    directory = own_cache_dir()
    if directory is None:
        return _compiled(function, keep=False)
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = directory
    try:
        return _compiled(function, keep=True)
    finally:
        config.CACHE_DIR = before


def is_kept(function: Callable[..., object]) -> bool:
    """Return whether the next process finds the kernel's machine code."""
    return not isinstance(cast(Any, function)._cache, NullCache)


def own_cache_dir() -> str | None:
    """Return a directory that only this user can write, because machine code is run from it. None if there is none."""
    path = os.path.join(tempfile.gettempdir(), f"barnabas-numba-{os.getuid()}")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)  # noqa: PTH103
        found = os.lstat(path)
    except OSError:
        return None
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return path if mine else None


def _compiled(function: F, *, keep: bool) -> F:
    # Division is never by zero here and offsets may wrap around, so numpy's rules are right, and fast.
    return cast(F, numba.njit(function, cache=keep, nogil=True, error_model="numpy"))


@intrinsic
def _copy_bytes(typing, target, target_at, source, source_at, size):  # type: ignore[no-untyped-def]
    memcpy: Callable[..., None] = cgutils.raw_memcpy
    signature = types.void(target, types.int64, source, types.int64, types.int64)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        into, into_at, of, of_at, count = arguments
        to = context.make_array(signature.args[0])(context, builder, into).data
        start = context.make_array(signature.args[2])(context, builder, of).data
        memcpy(builder, builder.gep(to, [into_at]), builder.gep(start, [of_at]), count, 1)
        return context.get_dummy_value()

    return signature, generate


#: Inside a kernel: `target[target_at : target_at + size] = source[source_at : source_at + size]` with the C library's memcpy,
#: without bounds checks. Numba's own slices and loops copy byte by byte, ten times slower.
copy_bytes = cast("Callable[[NDArray[np.uint8], int, NDArray[np.uint8], int, int], None]", _copy_bytes)
