"""Process of a platform: its configuration, background work, metrics and connections."""
