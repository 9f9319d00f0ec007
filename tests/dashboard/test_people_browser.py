"""People, with a real browser on a real server."""

import httpx
import pytest


@pytest.mark.slow
def test_a_key_is_created_used_revoked_and_refused(tab, server):
    tab.get_by_role("link", name="People").click()
    tab.get_by_role("link", name="New key").click()
    tab.get_by_label("Name").fill("laptop")
    tab.get_by_role("radio", name="run").check()
    tab.get_by_role("button", name="Create the key").click()
    secret = tab.locator("#secret").inner_text()
    assert secret.startswith("hud_")
    with server.client(secret) as client:
        assert client.get("/v2/jobs").status_code == 200
    tab.get_by_role("link", name="Done").click()
    row = tab.get_by_role("row").filter(has_text="laptop")
    assert secret not in tab.content()
    tab.on("dialog", lambda dialog: dialog.accept())
    row.get_by_role("button", name="Revoke").click()
    row.wait_for(state="detached")
    with server.client(secret) as client:
        refused = client.get("/v2/jobs")
    assert (refused.status_code, "revoked" in refused.text) == (401, True)
    tab.get_by_role("link", name="Audit log").click()
    tab.get_by_role("row").filter(has_text="key revoked").get_by_text("laptop").wait_for()


@pytest.mark.slow
def test_without_a_key_there_is_only_the_page_that_asks_for_one(server, chromium):
    context = chromium.new_context(base_url=server.url)
    page = context.new_page()
    for path in ("/people", "/tasksets", "/environments", "/baseline"):
        page.goto(path)
        assert "/signin" in page.url
    page.get_by_label("Key", exact=True).fill("hud_wrong")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("alert").get_by_text("unknown, expired or revoked").wait_for()
    context.close()
    assert httpx.get(f"{server.url}/people.json").status_code == 401
