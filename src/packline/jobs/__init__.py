"""Plan units, run them, commit them, publish the store."""
