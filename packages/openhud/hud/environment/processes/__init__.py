"""Processes and threads that an environment starts, and the variables that they inherit."""
