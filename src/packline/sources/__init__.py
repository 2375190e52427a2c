"""Readers of files: batches of documents with provenance."""
