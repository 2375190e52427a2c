"""What several layouts have in common, each a way of laying out tokens that more than one of them uses."""
