"""Stores, exports, tokenizers and evaluation sets on the Hugging Face hub: push and pull."""
