"""Trainings and evaluations that the dashboard launches, each in a process of its own."""
