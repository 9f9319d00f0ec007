"""The engine: decoder, chat format and policy; samplers in `sample/`, trainers in `learn/`; kernel backends join it (`kernels.py`)."""
