"""Paths through the dashboard with a real browser on a real server."""


def test_one_signs_in_and_switches_the_theme_and_reads_the_keys(tab):
    root = tab.locator("html")
    tab.get_by_role("button", name="Switch between light and dark").click()
    chosen = root.get_attribute("data-theme")
    tab.reload()
    assert root.get_attribute("data-theme") == chosen
    tab.keyboard.press("?")
    tab.get_by_role("dialog").get_by_text("this help").wait_for()
    tab.keyboard.press("Escape")
    tab.get_by_role("button", name="Sign out").click()
    tab.wait_for_url("**/signin")
