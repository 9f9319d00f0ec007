"""Data of pages: rows of the store, and what is computed from them."""
