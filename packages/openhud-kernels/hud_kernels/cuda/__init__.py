"""Fast paths on a CUDA GPU, which replace the reference's runner and layers from outside; `HUD_CUDA_KERNELS=0` switches them off."""
