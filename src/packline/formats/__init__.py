"""Other people's layouts of tokens, read and written: one file a format."""
