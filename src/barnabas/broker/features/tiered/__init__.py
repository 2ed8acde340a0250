"""Tiered storage (KIP-405): rolled segments in an object store, and what is known of them. See docs/tiered.md."""
