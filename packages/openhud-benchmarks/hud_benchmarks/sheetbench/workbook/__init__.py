"""The workbook of one run: cells, formulas, and the tools that read and change it."""
