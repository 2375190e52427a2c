"""From rows to batches: order, mixture, stages, and the loader."""
