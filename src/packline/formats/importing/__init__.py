"""From another layout to a store: opening, checking, taking documents out, and committing them."""
