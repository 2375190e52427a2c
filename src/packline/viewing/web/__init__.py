"""The web viewer: stores as pages of a site that only this machine, or who has a token, can read."""
