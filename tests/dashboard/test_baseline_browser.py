"""A person takes a task, with a real browser on a real server."""

import io
import re
import time

import pytest

from hud.client.archives import pack

ENV = '''
from hud import Environment

env = Environment("counting")

@env.tool()
def count(word: str, letter: str) -> int:
    """How often a letter is in a word."""
    return word.count(letter)

@env.template()
async def letters(word: str, letter: str):
    answer = yield f"How many {letter} are in {word}?"
    yield 1.0 if answer.strip() == str(word.count(letter)) else 0.0
'''
SCREEN = """
from hud import Environment

env = Environment("page")
env.browser(start_url="data:text/html,<h1>Look here")

@env.template()
async def look():
    yield "Look at the page."
    yield 1.0
"""
WAIT_SECONDS = 120


@pytest.fixture(scope="module")
def taskset(server, tmp_path_factory):
    """A taskset on the server, whose environment was deployed there."""
    folder = tmp_path_factory.mktemp("counting")
    args = {"word": "banana", "letter": "a"}
    task = {"name": "banana", "env": "counting", "task_id": "letters", "args": args}
    return deployed(server, folder, ENV, "words", task)


def deployed(server, folder, text, name, task):
    """Deploy an environment and upload a taskset of one task of it; returns the taskset's id."""
    (folder / "env.py").write_text(text)
    archive = io.BytesIO()
    pack(folder, archive)
    with server.client() as client:
        begun = client.post("/v2/builds/upload-url").json()
        client.put(begun["upload_url"], content=archive.getvalue())
        body = {"build_id": begun["build_id"], "name": task["env"]}
        build = client.post("/v2/builds/trigger", json=body).json()["id"]
        until = time.monotonic() + WAIT_SECONDS
        while (state := client.get(f"/v2/builds/{build}/status").json())["status"] != "SUCCEEDED":
            assert state["status"] == "IN_PROGRESS", state
            assert time.monotonic() < until, state
            time.sleep(0.1)
        body = {"taskset_name": name, "tasks": [task]}
        return client.post("/v2/tasks/upload", json=body).json()["taskset_id"]


@pytest.mark.slow
def test_one_takes_a_task_with_its_tools_and_sees_the_score(tab, taskset):
    tab.goto("/tasksets")
    tab.get_by_role("link", name="words", exact=True).click()
    tab.locator(".actions").get_by_role("link", name="Human baseline").click()
    tab.get_by_role("button", name="Begin").click()
    answer = tab.get_by_label("Your answer")
    answer.wait_for(timeout=WAIT_SECONDS * 1000)
    tab.get_by_text("How many a are in banana?").wait_for()
    answer.fill("not yet")
    tab.get_by_label("word").fill("banana")
    tab.get_by_label("letter").fill("a")
    tab.get_by_role("button", name="Call count").click()
    tab.locator("#move-1").get_by_text("3", exact=True).wait_for()
    assert answer.input_value() == "not yet"  # What was written stays, whatever is drawn again.
    answer.fill("3")
    tab.get_by_role("button", name="Answer", exact=True).click()
    tab.locator(".score").get_by_text("1.000").wait_for(timeout=WAIT_SECONDS * 1000)
    tab.get_by_role("link", name="All tasks").click()
    tab.get_by_role("row").filter(has_text="banana").get_by_text("1.000").first.wait_for()


@pytest.mark.slow
def test_a_screen_takes_the_clicks_of_its_picture(tab, server, tmp_path):
    task = {"name": "look", "env": "page", "task_id": "look", "args": {}}
    taskset = deployed(server, tmp_path, SCREEN, "pages", task)
    tab.goto(f"/baseline/{taskset}")
    tab.get_by_role("button", name="Begin").click()
    screen = tab.locator("input.screen")
    screen.wait_for(timeout=WAIT_SECONDS * 1000)
    box = screen.bounding_box()
    screen.click(position={"x": box["width"] / 2, "y": box["height"] / 2})
    move = tab.locator("#move-2")
    middle = re.compile(
        r"x=51[0-4] y=38[2-6]"
    )  # Of 1024 by 768 pixels, however large they are shown.
    move.get_by_text(middle).wait_for()
    tab.get_by_role("button", name="Give up").click()
    tab.locator(".score").get_by_text("1.000").wait_for(timeout=WAIT_SECONDS * 1000)


SPREADSHEET = '''
from hud import Environment
from hud.trace import TextContent, ToolResult

env = Environment("sheet")
cells = [["Item", "Units"], ["x", 2]]

@env.tool()
def read_range(sheet: str = "Data", show: str = "values") -> ToolResult:
    """Read the sheet."""
    grid = {"sheet": sheet, "sheets": ["Data"], "show": show, "top": 1, "left": 1, "rows": cells}
    return ToolResult(content=[TextContent(text=str(cells))], structured_content={"grid": grid})

@env.tool()
def write_cells(sheet: str, start: str, rows: list) -> str:
    """Write cells."""
    top, left = int(start[1:]) - 1, ord(start[0]) - ord("A")
    for down, row in enumerate(rows):
        while len(cells) <= top + down:
            cells.append([None, None])
        for right, value in enumerate(row):
            cells[top + down][left + right] = value
    return f"Wrote {start}."

@env.template()
async def fill():
    yield "Fill the sheet."
    yield float(cells == [["Item", "Units"], ["x", 5], ["y", 7], ["z", 8]])
'''


@pytest.mark.slow
def test_a_spreadsheet_is_a_grid_into_which_one_types_and_pastes(tab, server, tmp_path):
    task = {"name": "fill", "env": "sheet", "task_id": "fill", "args": {}}
    taskset = deployed(server, tmp_path, SPREADSHEET, "sheets", task)
    tab.goto(f"/baseline/{taskset}")
    tab.get_by_role("button", name="Begin").click()
    tab.get_by_label("B2", exact=True).wait_for(timeout=WAIT_SECONDS * 1000)
    tab.get_by_label("B2", exact=True).fill("9")
    tab.get_by_label("Your answer").fill("not yet")
    tab.get_by_role("button", name="Formulas").click()
    tab.locator("#grid-2").wait_for()
    assert tab.get_by_label("Your answer").input_value() == "not yet"
    units = tab.get_by_label("B2", exact=True)
    units.wait_for(timeout=WAIT_SECONDS * 1000)
    assert units.input_value() == "2"
    units.fill("5")
    tab.get_by_label("A3", exact=True).evaluate(
        """field => {
            const pasted = new DataTransfer();
            pasted.setData("text/plain", "y\\t7\\r\\nz\\t8\\r\\n");
            field.dispatchEvent(new ClipboardEvent("paste", {clipboardData: pasted, bubbles: true, cancelable: true}));
        }"""
    )
    tab.get_by_label("B4", exact=True).press("Enter")
    tab.locator("#move-5").wait_for()  # Read twice, written twice, read again.
    assert tab.get_by_label("B4", exact=True).input_value() == "8"
    tab.get_by_label("Your answer").fill("Done.")
    tab.get_by_role("button", name="Answer", exact=True).click()
    tab.locator(".score").get_by_text("1.000").wait_for(timeout=WAIT_SECONDS * 1000)
