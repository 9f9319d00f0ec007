"""The gallery of `autonomy-10`, docs/autonomy-10.md: `python benchmarks/autonomy_gallery.py [CATEGORY...]`.

Starts each application, or those named, as for a task, and takes a picture of it for docs/images. The page is written
for all of them. `--to FOLDER` writes elsewhere than to docs. Needs what the benchmark needs (scripts/setup-worlds), and
matplotlib for a font and palettes.
"""

from __future__ import annotations

import argparse
import asyncio
import io
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import matplotlib
from PIL import Image, ImageDraw, ImageFont

from hud.agents import ScriptedAgent
from hud.agents.native.bash import BashTool
from hud.eval import NullRecorder, Taskset
from hud.trace import ToolCall
from hud_benchmarks.autonomy import applications
from hud_benchmarks.autonomy.benchmarks import CATEGORIES, SEEDS
from hud_benchmarks.autonomy.category import Category
from hud_benchmarks.autonomy.web.application import credentials
from hud_benchmarks.autonomy.web.browser_actions import BrowserActions

DOCS = Path(__file__).parents[1] / "docs"
SEED = SEEDS["held-out"][0]
SIZE = (1024, 768)
COLOURS = 48
FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono.ttf"
COMMANDS = ("ls -l * | tail -9", "ls -l */* | head -32")
PATHS = {"tickets": "tickets", "wiki": "pages/1", "settings": "people"}
"""Pages that show more of an application than its first one."""
HEAD = """# autonomy-10: a gallery

The ten applications of [`autonomy-10`](application-benchmarks.md#autonomy-10), each as a task of the seed {seed} begins; web applications once
the agent is signed in. `python benchmarks/autonomy_gallery.py` takes the pictures and writes this page.
"""


def page() -> str:
    """Return the page."""
    parts = [HEAD.format(seed=f"{SEED:,}")]
    for category in CATEGORIES:
        about = getattr(applications, category.name).__doc__.strip()
        kinds = ", ".join(f"`{kind}`" for kind in category.kinds)
        parts.append(
            f"## {category.name}\n\n{about}\n\nKinds of tasks: {kinds}.\n\n"
            f"![{category.name}]({picture_of(category)})\n"
        )
    return "\n".join(parts)


def picture_of(category: Category) -> Path:
    """Return the file of an application's picture, relative to the page."""
    return Path("images") / f"autonomy-{category.name}.png"


async def taken(category: Category) -> Image.Image:
    """Start an application and return a picture of it."""
    pictures = []

    async def look(run: Any) -> None:
        if "chromium" in category.needs:
            pictures.append(await _in_browser(category, run))
        elif "Xvfb" in category.needs:
            pictures.append(_read(await (await run.open("rfb")).screenshot()))
        else:
            pictures.append(await _in_shell(run))

    task = category.make_task(category.kinds[0], SEED)
    job = await Taskset("gallery", [task]).run(ScriptedAgent(look, name="camera"), recorder=NullRecorder())  # fmt: skip
    if not pictures:
        raise SystemExit(f"{category.name}: {job.runs[0].error}")
    return pictures[0]


async def _in_browser(category: Category, run: Any) -> Image.Image:
    application = applications.WEB[category.name]
    hands = BrowserActions(run, await run.open("cdp"))
    if application.user is not None:
        login, password = credentials(application, application.database(SEED))
        await hands.fill("Login", login)
        await hands.fill("Password", password)
        await hands.click("Sign in")
    if category.name in PATHS:
        await hands.screen.goto(urljoin(await hands.screen.url(), f"/{PATHS[category.name]}"))
    return _read(await hands.screen.screenshot())


async def _in_shell(run: Any) -> Image.Image:
    """Return a picture of a terminal with commands and what they print."""
    run.attach(BashTool(await run.open("ssh")))
    lines = []
    for command in COMMANDS:
        call = ToolCall(id=command, name="bash", arguments={"command": command})
        lines += [f"$ {command}", *(await run.call_tool(call)).text.splitlines()]
    picture = Image.new("RGB", SIZE, "#1c2430")
    text = ImageDraw.Draw(picture)
    text.text((16, 12), "\n".join(lines), "#e1e4e9", ImageFont.truetype(str(FONT), 15))
    return picture


def _read(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content)).convert("RGB")


async def main() -> None:
    """Take the pictures of the named applications, or of all, and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", metavar="CATEGORY", nargs="*")
    parser.add_argument("--to", metavar="FOLDER", type=Path, default=DOCS)
    options = parser.parse_args()
    (options.to / "images").mkdir(parents=True, exist_ok=True)
    for category in CATEGORIES:
        if not options.names or category.name in options.names:
            path = options.to / picture_of(category)
            small = (await taken(category)).quantize(COLOURS, dither=Image.Dither.NONE)
            small.save(path, optimize=True)
            print(path, f"{path.stat().st_size:,} bytes")
    (options.to / "autonomy-10.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
