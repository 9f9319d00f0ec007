"""Kinds of tasks in the shop."""

from hud.benchmarks.autonomy.applications.shop.kinds import buying, customer
from hud.benchmarks.autonomy.web.application import Kind

KINDS: tuple[Kind, ...] = (*buying.KINDS, *customer.KINDS)
