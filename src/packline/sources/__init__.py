"""Files to batches of documents with provenance."""
