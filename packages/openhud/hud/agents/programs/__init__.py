"""Programs that people ship, and agents behind HTTP, as players of runs."""
