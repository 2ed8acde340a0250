"""Timers, purgatory and fault points: what waits, and what may go wrong on purpose."""
