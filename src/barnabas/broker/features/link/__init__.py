"""Links: topics of another cluster, mirrored into this one with their offsets. See docs/link.md."""
