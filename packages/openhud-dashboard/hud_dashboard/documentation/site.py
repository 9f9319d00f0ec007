"""The documentation's site: a folder of built pages, in the installed package or, after `make docs`, in a checkout."""

from __future__ import annotations

from pathlib import Path

from starlette.staticfiles import StaticFiles

from hud_dashboard.documentation.pages import PACKAGE, checkout_of


def site_files(package: Path = PACKAGE) -> StaticFiles | None:
    """Return the files of the site; None in a checkout in which it was not built."""
    checkout = checkout_of(package)
    folder = package / "docs_site" if checkout is None else checkout / "site"
    if not (folder / "index.html").is_file():
        return None
    return StaticFiles(directory=folder, html=True)
