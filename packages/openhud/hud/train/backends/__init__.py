"""Training backends: services other than the platform that sample and train models, joined by entry points."""
