"""The nearest known name of a misspelt one, for error messages."""

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`, if one is similar enough."""
    import difflib  # slow to import, and needed only after a mistake

    found = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.7)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?` for the end of an error message, or nothing."""
    found = nearest(name, known)
    return f"; did you mean {found}?" if found else ""
