"""Number of rollouts and of requests that are in force at a time."""
