"""Where files are read and results are kept: inputs, a local folder."""
