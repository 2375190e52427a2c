"""Tokenizers, encoding engines and their checks against the reference."""
