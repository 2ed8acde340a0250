"""Real processes that are killed, stopped, paused and restarted under load: a few seconds of what `tests.soak.chaos` does for
minutes. The seed chooses the faults, independent of the clock.
"""

import random

import pytest

from tests.soak.chaos import FAULTS, Chaos, chaos_cluster

#: Number of faults for each seed.
LENGTH = 2


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_no_acknowledged_record_is_lost_or_twice_whatever_breaks(seed: int) -> None:
    faults = random.Random(seed).sample(sorted(FAULTS), LENGTH)
    cluster = chaos_cluster()
    chaos = Chaos(cluster, seed, rate=200)
    with cluster:
        try:
            chaos.run(seconds=0, faults=faults)
        except BaseException as error:
            error.add_note("\n".join([f"seed {seed}, faults {faults}", *chaos.story]))
            raise
