"""Tasksets: tasks from files and from the platform, and back."""
