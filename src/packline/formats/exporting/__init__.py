"""From a store to another layout: what is written, where, and how it goes on after an interruption."""
