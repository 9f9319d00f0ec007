"""Memory of training and sampling: bytes of weights, states, activations and caches, from a model's dimensions."""
