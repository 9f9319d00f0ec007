"""A package, so that `tests` is this folder also where an installed distribution brings one of that name, as verl does."""
