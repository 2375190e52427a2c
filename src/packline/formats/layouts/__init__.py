"""Ways of laying out tokens that several formats share."""
