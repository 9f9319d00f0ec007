"""The network of a workspace: policy, proxy and forwarded ports."""
