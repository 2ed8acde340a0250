"""Timers, waiting requests, coordinators' shards, threads, and faults for tests."""
