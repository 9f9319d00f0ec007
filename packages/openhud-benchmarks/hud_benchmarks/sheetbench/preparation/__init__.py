"""Data preparation: what is messy is made a table."""
