"""Tasksets: named rows of tasks, in versions."""
