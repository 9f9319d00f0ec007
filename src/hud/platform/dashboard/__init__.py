"""The dashboard: the pages that the platform serves to browsers, at `/`.

`gate.Dashboard` stands before the API and takes what is a page's; `application.py` puts the pages together, which lie
in `pages/`, one file for each family. What they show they ask of `platform/store/` and of the platform's services:
no page knows SQL. `docs/dashboard.md` says how to add one.
"""

from hud.platform.dashboard.gate import Dashboard

__all__ = ["Dashboard"]
