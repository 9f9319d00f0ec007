"""The mathematics of training: groups, advantages, datums, packing, losses, corrections, schedules. Pure functions."""
