"""A spreadsheet on a desktop: workbooks to be filled in, repaired and kept, graded on the file that is left."""

from hud_benchmarks.autonomy.applications.spreadsheet.tasks import category

__all__ = ["category"]
