"""Show the contents of stores, rows and batches: one description of a page, rendered on every surface."""
