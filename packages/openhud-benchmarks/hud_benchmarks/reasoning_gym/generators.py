"""The generators that are shipped, and which of their items are tasks. Reading this loads no package.

An item is `create_dataset(name, seed=SEEDS[split], size=ITEMS[split])[index]`. Most generators draw item i from the
seed + i, so the splits draw from disjoint seeds. Small generators repeat themselves all the same: an item whose question is
a held-out task's already is no task.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from hud.benchmarks.benchmark import Benchmark, Family, Package, Split

if TYPE_CHECKING:
    from hud.agents import Agent
    from hud.environment import Task

PACKAGE = Package("reasoning-gym", "0.1.25", "Apache-2.0")

SEEDS: dict[Split, int] = {"train": 0, "held-out": 1_000_000}
ITEMS: dict[Split, int] = {"train": 500, "held-out": 100}

_FIELDS = {
    "algebra": "complex_arithmetic intermediate_integration polynomial_equations polynomial_multiplication "
    "simple_equations simple_integration",
    "algorithms": "ab base_conversion binary_alternation binary_matrix caesar_cipher count_primes cryptarithm "
    "game_of_life game_of_life_halting group_anagrams isomorphic_strings jugs letter_counting letter_jumble "
    "manipulate_matrix number_filtering number_sorting palindrome_generation palindrome_partitioning pool_matrix "
    "ransom_note rotate_matrix rotten_oranges sentence_reordering spell_backward spiral_matrix string_insertion "
    "string_manipulation string_splitting string_synthesis word_ladder word_sequence_reversal word_sorting",
    "abstraction": "arc_1d arc_agi rearc",
    "arithmetic": "basic_arithmetic bitwise_arithmetic calendar_arithmetic chain_sum count_bits decimal_arithmetic "
    "decimal_chain_sum dice fraction_simplification gcd gsm_symbolic lcm leg_counting number_format power_function "
    "prime_factorization products time_intervals",
    "code": "bf",
    "cognition": "color_cube_rotation figlet_font modulo_grid needle_haystack number_sequence rectangle_count",
    "games": "countdown emoji_mystery futoshiki kakurasu knight_swap mahjong_puzzle maze mini_sudoku n_queens "
    "puzzle24 sokoban sudoku survo tower_of_hanoi tsumego",
    "geometry": "advanced_geometry simple_geometry",
    "graphs": "course_schedule family_relationships largest_island path_star quantum_lock shortest_path",
    "induction": "acre list_functions",
    "logic": "aiw circuit_logic knights_knaves self_reference syllogism zebra_puzzles",
    "probability": "coin_flip",
}
GENERATORS = {name: field for field, names in _FIELDS.items() for name in names.split()}
"""Field of each generator."""

_NO_ANSWER = "the package stores no answer for it, so that nothing shows that its tasks can be done"
LEFT_OUT = {
    **dict.fromkeys(
        ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"), _NO_ANSWER
    ),
    "codeio": "its questions are made by executing stored programs, which were never reviewed and write files",
    "composite": "it has no questions of its own but mixes the others",
}
"""Generators of the package that are no benchmarks, and why."""


@functools.cache
def _left_out_items() -> dict[Split, dict[str, list[int]]]:
    """Return the items that are no tasks: repeated questions, and those whose stored answer does not score 1."""
    path = Path(__file__).with_name("left_out_items.json")
    items_by_split: dict[Split, dict[str, list[int]]] = json.loads(path.read_bytes())
    return items_by_split


@functools.cache
def chance_levels() -> dict[str, float]:
    """Return the reward of always giving one answer, by generator, where it is more than 0.05."""
    path = Path(__file__).with_name("chance_levels.json")
    levels: dict[str, float] = json.loads(path.read_bytes())
    return levels


def indices(generator: str, split: Split) -> list[int]:
    """Return the items of a generator that are the tasks of a split."""
    out = set(_left_out_items()[split].get(generator, ()))
    return [index for index in range(ITEMS[split]) if index not in out]


def family() -> Family:
    """Return a benchmark for each generator."""
    return Family(
        [
            Benchmark(
                name=f"reasoning-gym/{generator}",
                summary=field,
                package=PACKAGE,
                sizes={split: len(indices(generator, split)) for split in SEEDS},
                make_tasks=functools.partial(_tasks, generator),
                make_oracle=_oracle,
            )
            for generator, field in GENERATORS.items()
        ],
        left_out={f"reasoning-gym/{generator}": reason for generator, reason in LEFT_OUT.items()},
        baseline=Path(__file__).with_name("baseline.json"),
    )


def _tasks(generator: str, split: Split) -> list[Task]:
    from hud_benchmarks.reasoning_gym.environment import question

    tasks = []
    for index in indices(generator, split):
        task = question(generator=generator, split=split, index=index)
        task.slug = f"{generator}-{split}-{index}"
        if generator in chance_levels():
            task.columns = {"chance": chance_levels()[generator]}
        tasks.append(task)
    return tasks


def _oracle() -> Agent:
    from hud_benchmarks.reasoning_gym.oracle import oracle

    return oracle
