"""A small shop of real services. They know their settings, one another's addresses, and nothing of the lab."""
