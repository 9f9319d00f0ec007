"""The client of a desktop, over the Remote Framebuffer protocol."""
