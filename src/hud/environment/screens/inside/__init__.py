"""Programs of ours that run inside a box."""
