"""Containers by the command line of docker or podman: the one that is installed and answers.

`container_engine` runs commands, `images` builds and stores images, `container` is a running one, `loopback` its way out
to allowed hosts, `contained_environment` connects to the environment that it serves.
"""
