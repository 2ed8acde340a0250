"""Server-side assignors (KIP-848): who gets which partitions. Pure functions of a `GroupSpec`."""

from collections.abc import Callable, Mapping
from typing import Final

from barnabas.groups.assignors.range import assign_range
from barnabas.groups.assignors.spec import Assignment, GroupSpec
from barnabas.groups.assignors.uniform import assign_uniform
from barnabas.groups.settings import RANGE, UNIFORM

ASSIGNORS: Final[Mapping[str, Callable[[GroupSpec], Assignment]]] = {UNIFORM: assign_uniform, RANGE: assign_range}
