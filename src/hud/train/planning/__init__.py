"""What a training run would need and how fast it would be, before it is started."""
