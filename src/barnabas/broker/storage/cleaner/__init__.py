"""Compaction: the last value of each key stays, older ones go. `cleaner.Cleaner` drives it; see docs/formats/compaction.md."""
