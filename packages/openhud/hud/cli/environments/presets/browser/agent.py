"""A scripted agent that solves TITLE: the proof that the tasks can be done.

It works with the page itself. A model sees the screen:   hud eval FOLDER/tasks.py claude --all
"""


async def agent(run):
    """Press the button of the item."""
    item = run.prompt_text.split()[2]
    page = await run.open("cdp")
    await page.evaluate(f"document.querySelector('button[value={item}]').click()")
    await page.settle()
    return await page.evaluate("document.getElementById('bought').textContent")
