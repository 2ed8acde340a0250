"""Administration: one function per operation, over a `ClientCore`. Each module covers one kind of object."""
