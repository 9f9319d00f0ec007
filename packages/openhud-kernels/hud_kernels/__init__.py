"""Compiled runners and training passes for CPUs and CUDA GPUs; `hud` uses them by the entry points `hud.runners`."""
