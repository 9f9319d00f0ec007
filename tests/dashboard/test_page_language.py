"""One word for each thing: pages use the terms of the glossary in `docs/glossary.md`."""

import re
from html.parser import HTMLParser

from tests.dashboard.made_traces import conversation, put_job, put_run
from tests.dashboard.recorded import record
from tests.dashboard.test_models import made, record_rewards, tasks
from tests.dashboard.test_tasksets_pages import know_environment, task, upload
from tests.dashboard.test_train import make_model, record_run

OTHER_WORDS = re.compile(
    r"\b(beside|the beginning|world|talk to|made|begun|began|spread|drawn|all weights)\b", re.I
)
PAGES = """
    /jobs /models /models/m /models/m/compare /train /train/new /tasksets /environments /fleet /fleet/passes
    /playground /baseline /people /people/teams /people/audit /jobs/new /search?text=file
"""


class VisibleText(HTMLParser):
    """The text of a page with its titles, labels and placeholders, without addresses and classes."""

    def __init__(self, page):
        super().__init__()
        self.parts = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.parts += [
            value for name, value in attrs if name in ("title", "aria-label", "placeholder")
        ]

    def handle_data(self, data):
        self.parts.append(data)


async def test_pages_use_the_words_of_the_glossary(platform, web):
    model = make_model(platform)
    checkpoint = made(platform, model, 1)
    record_rewards(platform, model, None, tasks(0.2))
    record_rewards(platform, model, checkpoint, tasks(0.9))
    run = record_run(platform, model)
    know_environment(platform.store)
    taskset = upload(platform.store, task("apples"))
    jobs = [record(platform, name, {"a": [0.0, 1.0]}, model="m") for name in ("one", "two")]
    put_job(platform.store, "1" * 32)
    one, other = (
        put_run(platform.store, conversation(), job_id="1" * 32, slug="count") for _ in "ab"
    )
    paths = [
        *PAGES.split(),
        f"/jobs/{jobs[0]}",
        f"/jobs/compare?job={jobs[0]}&job={jobs[1]}",
        f"/train/{run}",
        f"/train/{run}/steps",
        f"/train/{run}/steps/1",
        f"/train/{run}/curves/groups.json",
        f"/tasksets/{taskset}",
        f"/tasksets/{taskset}/row?slug=apples",
        f"/trace/{one}",
        f"/trace/{one}/timeline",
        f"/trace/{one}/compare/{other}",
    ]
    wrong = {}
    for path in paths:
        answer = await web.get(path)
        assert answer.status_code == 200, path
        for part in VisibleText(answer.text).parts:
            if found := OTHER_WORDS.search(part):
                wrong[path] = found[0], part.strip()
    assert wrong == {}
