"""The web viewer: stores as pages of a site readable only from this machine or with a token."""
