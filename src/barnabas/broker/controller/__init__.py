"""The controller: the one broker that sees the others come and go, and says who leads what."""
