"""The entry point `dashboard` of `hud.pages`."""

from hud_dashboard import device_login
from hud_dashboard.documentation import routes as documentation
from hud_dashboard.middleware import Dashboard
from hud_dashboard.page_paths import PATHS
from hud_dashboard.state import DashboardState
from hud_platform.plugs.page_plugs import PagesPlug

pages = PagesPlug(
    middleware=Dashboard,
    paths=PATHS,
    routers=(device_login.router, documentation.router),
    service=DashboardState,
)
