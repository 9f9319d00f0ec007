"""Compose files: `compose_file` reads them, `compose_image` makes the image of a workspace with services, `compose_launch` starts one."""
