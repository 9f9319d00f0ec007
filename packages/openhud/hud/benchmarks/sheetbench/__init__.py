"""SheetBench-50: tasks over workbooks, done with the tools of a spreadsheet, graded on the workbook that is left."""

from hud.benchmarks.sheetbench.benchmarks import benchmarks

__all__ = ["benchmarks"]
