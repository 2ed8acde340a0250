"""Server-side assignors (KIP-848), which assign partitions to members. Pure functions of a `GroupSpec`."""

from collections.abc import Callable, Mapping
from typing import Final

from barnabas.broker.groups.assignors.range import assign_range
from barnabas.broker.groups.assignors.spec import Assignment, GroupSpec
from barnabas.broker.groups.assignors.uniform import assign_uniform
from barnabas.broker.groups.settings import RANGE, UNIFORM

ASSIGNORS: Final[Mapping[str, Callable[[GroupSpec], Assignment]]] = {UNIFORM: assign_uniform, RANGE: assign_range}
