"""From rows to batches: order, mixture, stages, and the loader that hands them out."""
