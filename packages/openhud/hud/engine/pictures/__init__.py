"""Pictures of conversations: a model's own preprocessing, and the tokens that stand for them in its prompts."""
