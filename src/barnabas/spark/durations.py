"""Times as Spark's options write them: `15m`, `30s`, `250ms`, `1h`, `2d`; a bare number is milliseconds. Pure."""

import re
from typing import Final

from barnabas.base.errors import ConfigError

_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_FORM: Final = re.compile(r"(\d+)\s*([a-z]*)")


def parse_duration_ms(text: str, name: str) -> int:
    match = _FORM.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS_MS:
        raise ConfigError(f"{name} is '{text}': not a time such as 15m, 30s or 250ms")
    return int(match[1]) * _UNITS_MS[match[2]]
