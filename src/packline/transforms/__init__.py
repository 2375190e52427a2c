"""Transforms of records to text: templates, filters, and conversations with loss masks."""
