"""The conformance suite of `Benchmark`: what holds for every benchmark that is registered."""

from __future__ import annotations

import pytest

from hud.benchmarks import SPLITS, Benchmark, benchmark, benchmarks
from hud.errors import NotFoundError, UsageError


def installed() -> list[Benchmark]:
    """One benchmark of each family whose package is installed."""
    first: dict[str, Benchmark] = {}
    for member in benchmarks():
        if member.package.installed == member.package.version:
            first.setdefault(member.name.partition("/")[0], member)
    return list(first.values())


@pytest.fixture(params=installed(), ids=lambda member: member.name)
def played(request):
    return request.param


def test_names_are_unique_and_found():
    names = [member.name for member in benchmarks()]
    assert len(names) == len(set(names)) > 100
    assert all(benchmark(name).name == name for name in names)
    with pytest.raises(NotFoundError, match="did you mean 'miniwob'"):
        benchmark("miniwop")


def test_each_names_its_package_with_a_licence_and_both_splits():
    for member in benchmarks():
        assert member.summary, member.name
        assert member.package.licence in ("MIT", "Apache-2.0"), member.name
        assert set(member.sizes) == set(SPLITS), member.name
        assert member.sizes["held-out"] > 0 <= member.sizes["train"], member.name


def test_splits_have_their_sizes_and_share_no_task(played):
    filled = [split for split in SPLITS if played.sizes[split]]
    slugs = {split: [task.slug for task in played.tasks(split)] for split in filled}
    assert {split: len(set(names)) for split, names in slugs.items()} == {
        split: played.sizes[split] for split in filled
    }
    assert not set(slugs.get("train", ())) & set(slugs["held-out"])
    for split in set(SPLITS) - set(filled):
        with pytest.raises(UsageError, match="held out"):
            played.tasks(split)


def test_tasks_are_bound_to_an_environment_that_another_process_can_load(played):
    for task in played.tasks():
        assert task.environment.name == task.env
        assert task.environment.source_file


def test_references_go_from_nothing_to_an_expert_where_there_are_solutions(played):
    standings = [reference.standing for reference in played.references.values()]
    assert standings == sorted(standings)
    assert standings[0] == 0.0
    assert (standings[-1] == 1.0) == (played.make_oracle is not None)


def test_an_unknown_split_is_refused(played):
    with pytest.raises(UsageError, match="train and held-out"):
        played.tasks("test")
