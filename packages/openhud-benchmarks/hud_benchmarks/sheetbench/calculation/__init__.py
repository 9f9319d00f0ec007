"""Recalculation of workbooks by LibreOffice."""

from hud_benchmarks.sheetbench.calculation.office import Changes, Office, Values, office

__all__ = ["Changes", "Office", "Values", "office"]
