"""Proving who one is: SASL mechanisms on both sides of the wire, and TLS contexts. No sockets."""
