"""Storage of results in a local folder, and reading of inputs."""
