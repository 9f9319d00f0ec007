"""SheetBench-50: tasks over workbooks, done with the tools of a spreadsheet, graded on the workbook that is left."""

from hud_benchmarks.sheetbench.benchmarks import family

__all__ = ["family"]
