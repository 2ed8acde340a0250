"""From a socket to a handler and back: listeners, connections, the request pipeline."""
