"""`tests.soak.pipeline`: the pipeline of the documentation, killed while its topics change, and a check of the soak itself."""

from pathlib import Path

import pytest

from tests.soak.pipeline import Soak, soak


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_row_is_at_every_sink_once_after_kills_and_changes(tmp_path: Path) -> None:
    soak(rounds=3, orders=2000, seed=1, kill_after_s=(10, 50), folder=tmp_path)


def test_the_soak_notices_rows_that_are_lost_doubled_or_made_up() -> None:
    equal = Soak.equal
    equal([2, 0, 1], [0, 1, 2], "Delta")
    with pytest.raises(AssertionError, match=r"Delta: missing \[2\] of 1, extra \[\]"):
        equal([0, 1], [0, 1, 2], "Delta")
    with pytest.raises(AssertionError, match=r"Delta: missing \[\] of 0, extra \[1\]"):
        equal([0, 1, 1, 2], [0, 1, 2], "Delta")
