"""Showing what is in stores, rows and batches: one description of a page, drawn on every surface."""
