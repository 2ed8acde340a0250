"""One file per API family: translate between the wire and the broker's parts, never decide."""
