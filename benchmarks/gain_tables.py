"""Tables of docs/gains.md from the records that gains.py, pretrained_gains.py, incident_gains.py, curriculum.py and
turn_credit.py write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from hud.eval.results.intervals import CONFIDENCE, clustered_interval, student, with_interval
from hud.eval.results.paired_differences import Rewards, pair

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER.parent / "docs" / "gains.md"
LAB_PAGE = FOLDER.parent / "docs" / "incident-lab.md"
SOLVED = 1.0
"""Reward of a whole finding."""


def reasoning_gym(records: Mapping[str, dict[str, Any]]) -> str:
    """Return a line for each record, with differences from the base paired by task."""
    lines = [
        "| family | most frequent answer | base | null run | trained | trained - base | null - base |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, record in sorted(records.items()):
        sides: dict[str, Rewards] = record["rewards"]
        policies = [shown(sides[policy]) for policy in ("constant", "base", "null", "trained")]
        policies[2] += null_mark(record)
        gains = [compared(sides["base"], sides[one]) for one in ("trained", "null")]
        lines.append(f"| {name} | {' | '.join([*policies, *gains])} |")
    return "\n".join(lines)


def pretrained(records: Mapping[str, dict[str, Any]]) -> str:
    """Return a line for each family of the pretrained model, with differences from the base paired by task."""
    lines = [
        "| family | apprentice | base | null run | trained | trained - base | null - base | minutes, of CPU |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, record in sorted(records.items()):
        sides: dict[str, Rewards] = record["rewards"]
        policies = [shown(sides[policy]) for policy in ("base", "null", "trained")]
        gains = [compared(sides["base"], sides[policy]) for policy in ("trained", "null")]
        spent = f"{record['minutes']:.0f}, {record['cpu_minutes']:.0f}"
        cells = [name, f"{record['apprentice']:.3f}", *policies, *gains, spent]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def incident_lab(record: Mapping[str, Any]) -> str:
    """Return a line for each policy on the held-out incidents, with differences from the base paired by incident."""
    lines = [
        "| policy | solved | reward | solved - base | reward - base | minutes |",
        "|---|---|---|---|---|---|",
    ]
    rewards: dict[str, Rewards] = record["rewards"]
    solved = {name: _solved(sides) for name, sides in rewards.items()}
    for policy in rewards:
        sides = (solved, rewards)
        gains = [compared(side["base"], side[policy]) for side in sides if policy != "base"]
        spent = f"{record['minutes'][policy]:.0f}"
        cells = [policy, *(shown(side[policy]) for side in sides), *(gains or ["", ""]), spent]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def incident_team(record: Mapping[str, Any]) -> str:
    """Return a line for each side on the held-out incidents, base and trained, and one for the difference of the sides."""
    lines = [
        "| side | base, solved | trained, solved | base, reward | trained, reward | reward, trained - base | trained tokens | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rewards: dict[str, Rewards] = record["rewards"]
    policies = {"hierarchical": ("specialist", "lead"), "flat": ("flat",)}
    measured = [side for side in policies if f"{side} trained" in rewards]
    for side in measured:
        forms = [rewards[f"{side} {form}"] for form in ("base", "trained")]
        tokens = sum(record["tokens"][policy] for policy in policies[side])
        spent = [f"{tokens:,}", f"{record['minutes'][side]:.0f}"]
        solved = [shown(_solved(form)) for form in forms]
        cells = [side, *solved, *map(shown, forms), compared(*forms), *spent]
        lines.append(f"| {' | '.join(cells)} |")
    if len(measured) == len(policies):
        flat, team = (rewards[f"{side} trained"] for side in ("flat", "hierarchical"))
        solved, reward = compared(_solved(flat), _solved(team)), compared(flat, team)
        lines.append(f"| hierarchical - flat | | {solved} | | {reward} | | | |")
    return "\n".join(lines)


def _solved(rewards: Rewards) -> Rewards:
    """Return 1 for each run with the whole finding, else 0."""
    return {
        slug: [float(reward == SOLVED) for reward in earned] for slug, earned in rewards.items()
    }


def incidents(record: dict[str, Any]) -> str:
    """Return a line for each side, and one for their difference, paired by incident."""
    sides: dict[str, Rewards] = record["rewards"]
    lines = [
        "| who | base | null run | trained | trained - base | null - base |",
        "|---|---|---|---|---|---|",
    ]
    for policy, name in (("flat", "flat"), ("lead", "hierarchical")):
        forms = [sides[policy + form] for form in ("-base", "-null", "")]
        gains = [compared(forms[0], forms[2]), compared(forms[0], forms[1])]
        base, null, trained = map(shown, forms)
        lines.append(
            f"| {name} | {' | '.join([base, null + null_mark(record), trained, *gains])} |"
        )
    between = [
        compared(sides[f"flat{form}"], sides[f"lead{form}"]) for form in ("-base", "-null", "")
    ]
    lines.append(f"| hierarchical - flat | {' | '.join(between)} | | |")
    return "\n".join(lines)


def curricula(record: dict[str, Any]) -> str:
    """Return the table of a record: a line for each target, and the difference paired by seed."""
    lines = [
        "| held-out reward | uniform, by seed | signal, by seed | uniform | signal | difference, 95% |",
        "|---|---|---|---|---|---|",
    ]
    for target in record["runs"][0]["rollouts"]:
        sides = [
            [one["rollouts"][target] for one in record["runs"] if one["curriculum"] == curriculum]
            for curriculum in ("uniform", "signal")
        ]
        differences = [signal - uniform for uniform, signal in zip(*sides, strict=True)]
        cells = [" ".join(f"{one:,}" for one in side) for side in sides]
        cells += [f"{fmean(side):,.0f}" for side in sides]
        lines.append(f"| {target} | {' | '.join(cells)} | {over_seeds(differences, '+,.0f')} |")
    return "\n".join(lines)


def runs_by(record: dict[str, Any], key: str) -> dict[str, list[dict[str, Any]]]:
    """Return a record's runs, by their value of a key, in the order of the record."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in record["runs"]:
        groups.setdefault(run[key], []).append(run)
    return groups


def turn_credit(record: dict[str, Any]) -> str:
    """Return the rollouts that each side took to the target, with 95% intervals over seeds, and the ratio of their means."""
    lines = [
        "| held-out reward | side | rollouts, by seed | rollouts | of per run |",
        "|---|---|---|---|---|",
    ]
    sides = {
        side: [run["rollouts"] for run in runs] for side, runs in runs_by(record, "side").items()
    }
    for side, rollouts in sides.items():
        by_seed = " ".join(f"{number:,}" for number in rollouts)
        share = f"{fmean(rollouts) / fmean(sides['per run']):.2f}"
        cells = [str(record["target"]), side, by_seed, over_seeds(rollouts, ",.0f"), share]
        lines.append(f"| {' | '.join(cells)} |")
    null = record["null"]
    highest = max(score for _, score in null["held_out"])
    played = f"{null['rollouts']:,}"
    lines.append(f"| {highest:.2f} at most | per turn, shuffled | {played} | | |")
    return "\n".join(lines)


def distillation(record: dict[str, Any]) -> str:
    """Return the table of a record: the rollouts of each method, by seed, and their part of GRPO's, paired by seed."""
    lines = [
        "| method | rollouts to the teacher's score, by seed | mean | part of GRPO's, mean and worst | last held-out score |",
        "|---|---|---|---|---|",
    ]
    by_method = runs_by(record, "method")
    of_grpo = [run["rollouts"] for run in by_method["GRPO"]]
    for method, runs in by_method.items():
        rollouts = [run["rollouts"] for run in runs]
        cells = " ".join(f"{'' if run['reached'] else '>'}{run['rollouts']:,}" for run in runs)
        parts = [own / max(other, 1) for own, other in zip(rollouts, of_grpo, strict=True)]
        share = ""
        if method.startswith("distillation"):
            over = "" if all(run["reached"] for run in runs) else ">"
            share = f"{over}{fmean(parts):.2f}, {over}{max(parts):.2f}"
        last = fmean(run["held_out"][-1][1] for run in runs)
        lines.append(f"| {method} | {cells} | {fmean(rollouts):,.0f} | {share} | {last:.3f} |")
    return "\n".join(lines)


def teacher_hints(record: dict[str, Any]) -> str:
    """Return the table of a record: held-out scores without a hint, before and after, by what the teacher read."""
    lines = [
        "| the teacher reads | held-out score before, by seed | after, by seed | gain, mean over seeds | rollouts |",
        "|---|---|---|---|---|",
    ]
    for hint, runs in runs_by(record, "hint").items():
        before, after = ([run["held_out"][place][1] for run in runs] for place in (0, -1))
        gains = [new - old for old, new in zip(before, after, strict=True)]
        cells = (" ".join(f"{score:.3f}" for score in scores) for scores in (before, after))
        lines.append(
            f"| {hint} | {' | '.join(cells)} | {over_seeds(gains, '+.3f')} | {runs[0]['rollouts']} |"
        )
    return "\n".join(lines)


def over_seeds(values: Sequence[float], form: str) -> str:
    """Return the mean and its 95% interval over seeds, by Student's t, each number in this format."""
    mean = fmean(values)
    reach = student(1 - CONFIDENCE, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return f"{mean:{form}} [{mean - reach:{form}}, {mean + reach:{form}}]"


def shown(rewards: Rewards) -> str:
    """Return mean and 95% interval over tasks."""
    clusters = [[one for one in earned if one is not None] for earned in rewards.values()]
    interval = clustered_interval(clusters)
    mean = sum(map(sum, clusters)) / sum(map(len, clusters))
    return with_interval(mean, interval and interval.low, interval and interval.high)


def null_mark(record: Mapping[str, Any]) -> str:
    """Return what a null run's cell says behind its interval: nothing, or that no weight moved."""
    return "" if record["null"] == "shuffled" else f", {record['null']}"


def compared(before: Rewards, after: Rewards) -> str:
    """Return the mean difference, paired by task, and its 95% interval."""
    overall = pair(before, after).overall
    assert overall is not None
    return with_interval(overall.mean, overall.low, overall.high, signed=True)


def prompt_gains(record: Mapping[str, Any]) -> str:
    """Return the table of the searches of a prompt, one row for each seed."""
    lines = [
        "| seed | side | best prompt | its gain, held out | promoted | test set, before and after | gain on the test set | rollouts |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in record["runs"]:
        test = run["test"]
        promoted = "yes" if run["promoted"] else "no"
        lines.append(
            f"| {run['seed']} | {run['side']} | {run['prompt'] or 'none'} | {_gain(run['held_out'])} | {promoted} | "
            f"{test['before']:.3f}, {test['after']:.3f} | {_gain(test)} | {run['spent']['rollouts']} |"
        )
    return "\n".join(lines)


def improved_families(record: Mapping[str, Any]) -> str:
    """Return the table of the improvements of three families, one row for each seed."""
    lines = [
        "| family | seed | rungs: gain on held-out tasks | test set, before and after | gain on the test set | rollouts |",
        "|---|---|---|---|---|---|",
    ]
    for run in record["runs"]:
        rungs = []
        for rung in run["rungs"]:
            gain = "" if rung["gain"] is None else " " + with_interval(*rung["gain"], signed=True)
            rungs.append(f"{rung['name']}{gain}: {rung['outcome']}")
        test = run["test"]
        lines.append(
            f"| {run['family']} | {run['seed']} | {'; '.join(rungs)} | {test['before']:.3f}, {test['after']:.3f} | {_gain(test)} | "
            f"{run['spent']['rollouts']:,} |"
        )
    return "\n".join(lines)


def _gain(measured: Mapping[str, float] | None) -> str:
    """Return a gain with its interval; a dash where nothing was compared."""
    if measured is None:
        return "–"
    return with_interval(measured["gain"], measured["low"], measured["high"], signed=True)


def tables() -> dict[str, str]:
    """Return the table of each record that is there, by the record's name."""
    makers = {
        "gains": reasoning_gym,
        "pretrained_gains": pretrained,
        "incidents": incidents,
        "curriculum": curricula,
        "distillation": distillation,
        "turn_credit": turn_credit,
    }
    return {
        name: make(json.loads((FOLDER / f"{name}.json").read_text()))
        for name, make in makers.items()
        if (FOLDER / f"{name}.json").exists()
    }
