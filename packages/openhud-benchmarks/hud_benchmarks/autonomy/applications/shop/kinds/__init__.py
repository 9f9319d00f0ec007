"""Kinds of tasks in the shop."""

from hud_benchmarks.autonomy.applications.shop.kinds import buying, customer
from hud_benchmarks.autonomy.web.application import Kind

KINDS: tuple[Kind, ...] = (*buying.KINDS, *customer.KINDS)
