"""`hud view`: the pages over the records of this machine, for one browser."""
