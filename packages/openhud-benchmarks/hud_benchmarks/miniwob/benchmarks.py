"""The benchmark `miniwob`: its pages and seeds. Reading this loads no package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hud.benchmarks.benchmark import SPLITS, Benchmark, Family, Package, Split

if TYPE_CHECKING:
    from hud.environment import Task

PACKAGE = Package(
    "miniwob",
    "1.1.0",
    "MIT",
    bare=True,  # Its pages are used, and none of its Python, which needs Selenium and Gymnasium.
)

SEEDS: dict[Split, range] = {"train": range(10), "held-out": range(1_000_000, 1_000_002)}
_NAMES = """
    ascending-numbers bisect-angle book-flight-nodelay book-flight button-delay buy-ticket choose-date-easy
    choose-date-medium choose-date-nodelay choose-date choose-list circle-center click-button-sequence
    click-button click-checkboxes-large click-checkboxes-soft click-checkboxes-transfer click-checkboxes
    click-collapsible-2-nodelay click-collapsible-2 click-collapsible-nodelay click-collapsible click-color
    click-dialog-2 click-dialog click-link click-menu-2 click-menu click-option click-pie-nodelay click-pie
    click-scroll-list click-shades click-shape click-tab-2-easy click-tab-2-hard click-tab-2-medium click-tab-2
    click-tab click-test-2 click-test-transfer click-test click-widget copy-paste-2 copy-paste count-shape
    count-sides daily-calendar drag-box drag-circle drag-cube drag-items-grid drag-items drag-shapes-2
    drag-shapes drag-single-shape drag-sort-numbers draw-circle draw-line email-inbox-delete
    email-inbox-forward-nl-turk email-inbox-forward-nl email-inbox-forward email-inbox-important
    email-inbox-nl-turk email-inbox-noscroll email-inbox-reply email-inbox-star-reply email-inbox enter-date
    enter-password enter-text-2 enter-text-dynamic enter-text enter-time find-greatest find-midpoint find-word
    focus-text-2 focus-text form-sequence-2 form-sequence-3 form-sequence generate-number grid-coordinate
    guess-number highlight-text-2 highlight-text hot-cold identify-shape login-user-popup login-user
    multi-layouts multi-orderings navigate-tree number-checkboxes odd-or-even order-food phone-book read-table-2
    read-table resize-textarea right-angle scroll-text-2 scroll-text search-engine sign-agreement simple-algebra
    simple-arithmetic social-media-all social-media-some social-media terminal text-editor text-transform
    tic-tac-toe unicode-test use-autocomplete-nodelay use-autocomplete use-colorwheel-2 use-colorwheel
    use-slider-2 use-slider use-spinner visual-addition
"""
PAGES = _NAMES.split()
_REAL_TIME = "it needs reactions faster than the turns of an agent"
LEFT_OUT = dict.fromkeys(
    ("chase-circle", "hover-shape", "moving-items", "simon-says", "stock-market"), _REAL_TIME
)
"""Pages of the package that are no tasks, and why."""
FEW_PLACES = frozenset(
    [
        "click-checkboxes-soft",
        "click-checkboxes-transfer",
        "click-test",
        "click-test-2",
        "click-test-transfer",
        "find-greatest",
        "focus-text",
        "grid-coordinate",
        "hot-cold",
    ]
)
"""Pages on which clicks all over the screen earn something."""


def family() -> Family:
    """Return the one benchmark."""
    return Family(
        [
            Benchmark(
                name="miniwob",
                summary="small web pages, done with mouse and keyboard",
                package=PACKAGE,
                sizes={split: len(PAGES) * len(SEEDS[split]) for split in SPLITS},
                make_tasks=_tasks,
                needs="chromium, bubblewrap: scripts/setup-worlds",
            )
        ],
        baseline=Path(__file__).with_name("baseline.json"),
    )


def _tasks(split: Split) -> list[Task]:
    from hud_benchmarks.miniwob.environment import page

    tasks = []
    for name in PAGES:
        for seed in SEEDS[split]:
            task = page(name=name, seed=seed)
            task.slug = f"{name}-{seed}"
            task.columns = {"page": name}
            if name in FEW_PLACES:
                task.columns["audit:calls"] = "the page has so few places that some click is right"
            tasks.append(task)
    return tasks
