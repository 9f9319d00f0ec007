"""The client of a shell and files, over SSH."""
