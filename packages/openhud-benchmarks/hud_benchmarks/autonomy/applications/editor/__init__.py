"""A text editor on a desktop: documents to be edited as asked for, graded on the file that is left."""

from hud_benchmarks.autonomy.applications.editor.tasks import category

__all__ = ["category"]
