"""Import of another layout into a store: opening, checking, restoring documents, and committing them."""
