"""Models on a Tinker service: sampled and updated there by its client, the package `tinker`."""
