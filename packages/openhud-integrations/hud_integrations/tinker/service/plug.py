"""The entry point `tinker` of `hud.routes`: Tinker's API on the platform."""

from hud_integrations.tinker.service.client_state import ClientState
from hud_integrations.tinker.service.routes import records, sampling, training
from hud_platform.plugs.route_plugs import RoutePlug

routes = RoutePlug(
    prefix="/api/v1",
    routers=(sampling.router, training.router, records.router),  # The first are polled.
    service=lambda parts: ClientState(lambda: parts.engine, parts.keys, parts.stopping),
    key_prefix="tml-",  # Tinker's client takes only keys that begin with this.
)
