"""What every other module may know: kinds of integer, failures, the clock, configuration."""
