"""Training sessions, runs, and the launcher."""
