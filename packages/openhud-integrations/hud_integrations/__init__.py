"""Integrations with other trainers and environment libraries, a module each. Each imports its library when it is used."""
