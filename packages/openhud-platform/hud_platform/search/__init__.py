"""Search over runs: the query language, the full-text index and the search itself."""
