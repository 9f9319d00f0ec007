"""Human baselines: people take tasks in the browser, and their scores are kept beside the models'."""
