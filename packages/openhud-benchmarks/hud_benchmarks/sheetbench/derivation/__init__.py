"""Derivation: figures that follow from tables."""
