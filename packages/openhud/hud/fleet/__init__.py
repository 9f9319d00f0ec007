"""The fleet: processes that play the rollouts which a platform was asked to play itself."""
