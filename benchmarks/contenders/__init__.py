"""What packline is compared with: each a script that does the whole job once and prints one JSON object.

A script imports nothing of packline, so it runs under any interpreter that has the peer in it. It
prints at least `documents`, `tokens`, `text_bytes` and `seconds` (of the job, without imports and
without loading the tokenizer).
"""
