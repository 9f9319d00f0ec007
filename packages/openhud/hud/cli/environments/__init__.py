"""Commands that write, serve and deploy environments and tasks."""
