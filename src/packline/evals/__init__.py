"""Evaluation sets as tokens, and whether a store has seen them."""
