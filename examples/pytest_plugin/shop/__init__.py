"""Orders come in at the desk, and the kitchen makes them."""
