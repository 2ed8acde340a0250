"""Tiered storage (KIP-405): rolled segments in an object store, and their metadata. See docs/tiered.md."""
