"""What a decoder of a given shape must compute and move, counted by hand."""

from __future__ import annotations

from hud.engine.config import DecoderConfig


class Counts:
    """Operations and bytes of a decoder of one shape."""

    def __init__(self, config: DecoderConfig, element: int = 4) -> None:
        """`element` is the bytes of a weight, an activation or a key."""
        self.config, self.element = config, element
        self.layers = config.num_hidden_layers
        self.queries = config.num_attention_heads * config.head_dim
        self.keys = config.num_key_value_heads * config.head_dim
        hidden, inner = config.hidden_size, config.intermediate_size
        self.products = [
            (hidden, self.queries),
            (hidden, self.keys),
            (hidden, self.keys),
            (self.queries, hidden),
            (hidden, inner),
            (hidden, inner),
            (inner, hidden),
        ]
        """(in, out) of every matrix of a layer."""
        self.layer = sum(rows * columns for rows, columns in self.products)
        self.head = hidden * config.vocab_size
        self.weights = self.layers * self.layer + self.head

    def forward(self, tokens: int, attended: float, logits: int) -> float:
        """Return the operations of a pass: `attended` is the sum over its tokens of how many each looks at."""
        attention = 4 * self.queries * attended * self.layers
        return 2 * self.layers * self.layer * tokens + attention + 2 * self.head * logits

    def cache(self, tokens: float) -> float:
        """Return the bytes of so many tokens' keys and values."""
        return 2 * self.keys * tokens * self.layers * self.element

    def gradient(
        self, tokens: int, attended: float, logits: int, *, adapters: bool = False
    ) -> float:
        """Return the operations of a pass and its gradient; of adapters alone, the weights' own gradients are spared."""
        whole = 3 * self.forward(tokens, attended, logits)
        spared = 2 * (self.layers * self.layer * tokens + self.head * logits)
        return whole - spared if adapters else whole
