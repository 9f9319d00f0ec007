"""Losses: configuration, formulas, and corrections for stale or inexact samplers."""
