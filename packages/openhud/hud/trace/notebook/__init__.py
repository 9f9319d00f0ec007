"""HTML of traces in a notebook."""
