"""Rows: documents laid out in training sequences of one length, as views over a store."""
