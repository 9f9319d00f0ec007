"""Recorded runs, graded again by a changed grader into a new job.

It knows recorded runs, tasks and the order of an attempt. The environment is brought up as for a rollout; the agent repeats the record.
"""
