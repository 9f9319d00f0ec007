"""The engine: decoder, chat format and policy; samplers in `sample/`, the trainer in `learn/`, fast paths in `cpu/` and `cuda/`."""
