"""Used by all other packages: kinds of integers, failures, the clock, configuration."""
