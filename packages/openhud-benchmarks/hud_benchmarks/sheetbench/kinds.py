"""The kinds of tasks, by category and name."""

from __future__ import annotations

from random import Random

from hud_benchmarks.sheetbench.derivation import findings, layout, lookups, sums
from hud_benchmarks.sheetbench.grading.exercise import Exercise
from hud_benchmarks.sheetbench.kind import Kind
from hud_benchmarks.sheetbench.modelling import loans, plans
from hud_benchmarks.sheetbench.preparation import formulas, records, rows

CATEGORIES: dict[str, tuple[Kind, ...]] = {
    "preparation": (
        Kind("contacts", "easy", 2, records.contacts),
        Kind("bank", "medium", 3, records.bank),
        Kind("addresses", "easy", 2, records.addresses),
        Kind("quantities", "medium", 2, records.quantities),
        Kind("survey", "medium", 2, records.survey),
        Kind("duplicates", "easy", 2, rows.duplicates),
        Kind("unpivot", "easy", 2, rows.unpivot),
        Kind("merge", "medium", 3, rows.merge),
        Kind("report", "medium", 3, rows.report),
        Kind("ledgers", "hard", 3, rows.ledgers),
        Kind("codes", "medium", 2, formulas.codes),
        Kind("errors", "hard", 3, formulas.errors),
    ),
    "derivation": (
        Kind("pivot", "easy", 2, sums.pivot),
        Kind("aging", "medium", 2, sums.aging),
        Kind("hours", "hard", 2, sums.hours),
        Kind("discounts", "medium", 2, lookups.discounts),
        Kind("currencies", "medium", 2, lookups.currencies),
        Kind("questions", "easy", 2, findings.questions),
        Kind("cohorts", "hard", 2, findings.cohorts),
        Kind("charts", "easy", 1, layout.charts),
        Kind("form", "medium", 1, layout.form),
    ),
    "modelling": (
        Kind("amortization", "hard", 2, loans.amortization),
        Kind("investments", "medium", 1, loans.investments),
        Kind("cash", "hard", 1, plans.cash),
        Kind("scenarios", "hard", 1, plans.scenarios),
    ),
}
KINDS = {kind.name: kind for kinds in CATEGORIES.values() for kind in kinds}


def exercise(kind: str, seed: int) -> Exercise:
    """Return the exercise of a kind and a seed."""
    return KINDS[kind].make(Random(f"{kind} {seed}"))
