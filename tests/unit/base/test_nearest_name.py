"""The nearest known name of a misspelt one."""

import pytest

from barnabas.base.names import did_you_mean, nearest

KNOWN = ("retention.ms", "retention.bytes", "segment.bytes")


@pytest.mark.parametrize(
    ("name", "found"), [("retention.sm", "retention.ms"), ("segment.byte", "segment.bytes"), ("x", None)]
)
def test_nearest_name_is_found_only_if_it_is_similar(name: str, found: str | None) -> None:
    assert nearest(name, KNOWN) == found


def test_hint_is_empty_without_a_similar_name() -> None:
    assert did_you_mean("segmnt.bytes", KNOWN) == "; did you mean segment.bytes?"
    assert did_you_mean("x", KNOWN) == ""
