"""The platform: one ASGI application, a server's or the embedded one's."""
