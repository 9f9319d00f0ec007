"""Fast paths on a CPU, which replace the reference's layers and runner from outside; `HUD_CPU_KERNELS=0` switches them off."""
