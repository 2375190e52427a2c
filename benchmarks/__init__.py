"""How fast packline is, how much memory it takes, and how that compares: measured, never typed by hand.

    texts -> corpus -> catalogue -> suite, memory -> results -> render
    (real    (files    (who is     (in turn, a      (one JSON   (tables of
    text)    to read)   compared)   process each)    file)       the README)

Run from the root of the repository: `python -m benchmarks --help`. `benchmarks/README.md` says what
is measured and what is not claimed. Importing this package imports nothing else, because the
contenders run from it under interpreters that have no packline.
"""
