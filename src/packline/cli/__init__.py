"""The command line: one lazy file a command, and `output`, the one place that prints."""
