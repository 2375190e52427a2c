"""Vocabularies: training, comparing and checking tokenizers."""
