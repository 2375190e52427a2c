"""Export of a store to another layout: what is written, where, and how an interrupted export resumes."""
