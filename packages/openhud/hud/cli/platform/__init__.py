"""Commands that run the platform, and configure its address and keys."""
