"""Worker processes of small models: weights in shared memory, sampling and training passes on one core each."""
