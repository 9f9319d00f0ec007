"""Queries of pages: tables of the store, read as a page shows them."""
