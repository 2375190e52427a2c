"""Conditions on fields, in one grammar: for the records of a source, and for the documents of a store."""
