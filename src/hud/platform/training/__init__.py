"""Training sessions, their leases and runs, and the launcher."""
