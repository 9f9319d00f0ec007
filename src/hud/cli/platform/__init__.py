"""Commands that run the platform, and say where it is and with which keys."""
