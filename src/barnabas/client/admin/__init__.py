"""Administration: one function an operation, over a `Cluster`. Modules go by what is administered."""
