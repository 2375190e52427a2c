"""The store on disk: format, writer, reader, checks."""
