"""Tasksets: tasks from and to files and the platform."""
