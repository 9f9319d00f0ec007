"""Contents of a run's page: steps, values, pictures, tokens, grades, and comparisons of two runs."""
