"""Shared by all other packages: kinds of integers, errors, the clock, configuration."""
