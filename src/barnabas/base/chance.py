"""Random ids."""

import os

from barnabas.base.ids import format_uuid


def random_uuid() -> bytes:
    """Return a version-4 UUID whose text form never begins with a dash, so that tools do not read it as an option."""
    while True:
        raw = bytearray(os.urandom(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        if not format_uuid(bytes(raw)).startswith("-"):
            return bytes(raw)
