"""Read-only pages of one job, which need no server, no key and no script."""
