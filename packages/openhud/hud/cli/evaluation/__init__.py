"""Commands that play tasks and read what was played."""
