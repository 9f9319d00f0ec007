"""`hud improve`: a policy climbs from a prompt over imitation and distillation to reinforcement, within one budget."""
