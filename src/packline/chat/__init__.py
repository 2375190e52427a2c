"""Supervised mixtures and evaluation sets as tokens."""
