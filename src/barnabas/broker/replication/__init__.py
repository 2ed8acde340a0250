"""Copies of a partition: who leads, who is in sync, what is committed, and how a follower catches up."""
