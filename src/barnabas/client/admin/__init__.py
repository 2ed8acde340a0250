"""Administration: one function an operation, over a `ClientCore`. Modules go by what is administered."""
