"""Null lists and maps of structs, which pyiceberg up to 0.12 turns into empty ones when it reads, writes or rewrites rows.

apache/iceberg-python#3833: it rebuilds such columns without the information which of them are null. In a file that it has
written they look the same. A version that keeps nulls is left as it is.
"""

from functools import wraps
from typing import Any, Final

_MENDED: Final = "_barnabas_keeps_nulls"


def keep_nulls() -> None:
    """Change pyiceberg in this process from now on."""
    from pyiceberg.io.pyarrow import ArrowProjectionVisitor

    if not hasattr(ArrowProjectionVisitor, _MENDED):
        for name in ("list", "map"):
            setattr(ArrowProjectionVisitor, name, _keeping(getattr(ArrowProjectionVisitor, name)))
        setattr(ArrowProjectionVisitor, _MENDED, True)


def _keeping(original: Any) -> Any:
    @wraps(original)
    def keeps(self: object, kind: object, given: Any, *parts: Any) -> Any:
        found = original(self, kind, given, *parts)
        if found is None or found.null_count == given.null_count:
            return found
        return _with_nulls_of(given, found)

    return keeps


def _with_nulls_of(given: Any, found: Any) -> Any:
    import pyarrow

    # Arrow takes no mask for offsets that are a slice of others.
    offsets = pyarrow.array(found.offsets.to_numpy(), found.offsets.type)
    children = (found.keys, found.items) if pyarrow.types.is_map(found.type) else (found.values,)
    return type(found).from_arrays(offsets, *children, type=found.type, mask=given.is_null())
