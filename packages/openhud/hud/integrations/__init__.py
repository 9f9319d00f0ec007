"""Adapters to other trainers and environment libraries. Each imports its library when it is used."""
