"""File management in a shell: trees of files to be put in order, graded on the tree that is left."""

from hud_benchmarks.autonomy.applications.files.tasks import category

__all__ = ["category"]
