"""Routes of Tinker's API, which speak the wire of the package `tinker`."""
