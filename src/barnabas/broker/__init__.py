"""A broker: its layers, each a package; `compose` puts them together, `process` runs one as a process."""
