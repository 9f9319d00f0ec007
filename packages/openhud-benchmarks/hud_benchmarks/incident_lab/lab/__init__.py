"""The lab: starts the shop, watches it, breaks it, and writes down what was to be seen."""
