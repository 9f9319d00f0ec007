"""Human baselines: people play tasks in the browser, and their scores are stored for comparison with models."""
