"""Access control: identities, keys, teams, limits."""

from hud_platform.access.identity import LOCAL, SCOPES, Identity, Scope, caller, needs

__all__ = ["LOCAL", "SCOPES", "Identity", "Scope", "caller", "needs"]
