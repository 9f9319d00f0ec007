"""Commands for the platform's clients: address, keys, secrets, sign-in, and the privacy of imported runs."""
