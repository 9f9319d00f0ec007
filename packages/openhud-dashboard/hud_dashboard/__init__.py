"""Dashboard: the pages that the platform serves to browsers, at `/`.

`middleware.Dashboard` is middleware in front of the API that serves requests for pages; `application.py` combines the pages
in `pages/`, one file for each family. Pages read by `queries/`, by
`hud_platform.store` and by the platform's services, without SQL of their own. `docs/dashboard-pages.md` describes how to add a page.
"""

from hud_dashboard.middleware import Dashboard

__all__ = ["Dashboard"]
