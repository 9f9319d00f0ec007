"""Processes of this machine and waits between attempts."""
