"""Modelling: figures that follow from assumptions."""
