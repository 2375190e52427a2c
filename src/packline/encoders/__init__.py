"""Texts to ids: tokenizers, engines, and what holds them to the reference."""
