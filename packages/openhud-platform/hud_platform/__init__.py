"""Platform: one ASGI application, for a server or embedded in a process."""
