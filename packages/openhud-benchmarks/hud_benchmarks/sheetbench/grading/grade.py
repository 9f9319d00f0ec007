"""Grading of the workbook that a run leaves."""

from __future__ import annotations

from openpyxl import Workbook

from hud.graders import EvaluationResult, SubScore
from hud_benchmarks.sheetbench.calculation import Values, office
from hud_benchmarks.sheetbench.calculation.office import CalculationError
from hud_benchmarks.sheetbench.grading.exercise import SCRATCH, Cell, Exercise, Value, Wanted
from hud_benchmarks.sheetbench.workbook.book import saved
from hud_benchmarks.sheetbench.workbook.cells import Area, is_formula
from hud_benchmarks.sheetbench.workbook.state import NUMBER_FORMAT, Place, state

_NAMED = 5
"""Places that a grade names."""


def grade(exercise: Exercise, left: Workbook) -> EvaluationResult:
    """Grade the workbook that is left of an exercise.

    The reward is the share of the parts that are done, and 0 where anything else was changed. A cell for which a formula
    was asked must hold one, and give the right value for the inputs as they are and for each other set of inputs.
    """
    damaged = damage(exercise, left)
    if damaged:
        named = ", ".join(map(_named, damaged[:_NAMED]))
        more = f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
        return EvaluationResult(
            reward=0.0,
            content=f"{len(damaged)} not to be changed: {named}{more}.",
            info={"damaged": len(damaged)},
        )
    try:
        recalculations = recalculated(exercise, left)
    except CalculationError as error:
        return EvaluationResult(reward=0.0, content=str(error), info={"damaged": 0})
    now = state(left)
    wrong: dict[str, list[Place]] = {}
    for name in exercise.names():
        cells = exercise.parts.get(name, {})
        wrong[name] = [
            cell
            for cell, wanted in cells.items()
            if not _met(exercise, cell, wanted, now, recalculations)
        ]
        settings = exercise.settings.get(name, {})
        wrong[name] += [place for place, wanted in settings.items() if now.get(place) != wanted]
    done = [name for name, places in wrong.items() if not places]
    first = [_named(places[0]) for places in wrong.values() if places][:_NAMED]
    return EvaluationResult(
        reward=len(done) / len(wrong),
        content=f"Not as asked for: {', '.join(first)}." if first else None,
        info={"damaged": 0, "parts": len(wrong), "done": len(done)},
        subscores=[SubScore(name=name, value=float(name in done)) for name in wrong],
    )


def damage(exercise: Exercise, left: Workbook) -> list[Place]:
    """Return the places that were changed and were not to be."""
    before, now = state(exercise.workbook), state(left)
    wanted_places: set[Place] = {place for places in exercise.settings.values() for place in places}
    for cell, _ in exercise.wanted():
        wanted_places |= {cell, (*cell, NUMBER_FORMAT)}
    changed = {place for place in before.keys() | now.keys() if before.get(place) != now.get(place)}
    return sorted((place for place in changed - wanted_places if place[0] != SCRATCH), key=str)


def recalculated(exercise: Exercise, left: Workbook) -> list[Values]:
    """Return the values of a workbook as it is, then for each other set of inputs; raises `CalculationError`."""
    changes = [
        {f"{sheet}!{cell}": value for (sheet, cell), value in what_if.changes.items()}
        for what_if in exercise.what_ifs
    ]
    return office().recalculate(saved(left), [{}, *changes])


def _met(
    exercise: Exercise,
    cell: Cell,
    wanted: Wanted,
    now: dict[Place, object],
    recalculations: list[Values],
) -> bool:
    if not wanted.met(value_at(recalculations[0], cell)):
        return False
    if wanted.formula is None:
        return True
    if not is_formula(now.get(cell)):
        return False
    return all(
        Wanted(_expected(what_if.expected, cell, wanted), tolerance=wanted.tolerance).met(
            value_at(values, cell)
        )
        for what_if, values in zip(exercise.what_ifs, recalculations[1:], strict=True)
    )


def _expected(expected: object, cell: Cell, wanted: Wanted) -> Value:
    assert isinstance(expected, dict)
    value: Value = expected.get(cell, wanted.value)
    return value


def value_at(values: Values, cell: Cell) -> float | str:
    """Return the value of a cell, '' beyond the last one."""
    sheet, text = cell
    area, rows = Area.parsed(text), values.get(sheet, [])
    if area.top > len(rows) or area.left > len(rows[area.top - 1]):
        return ""
    return rows[area.top - 1][area.left - 1]


def _named(place: Place) -> str:
    return "!".join(map(str, place))
