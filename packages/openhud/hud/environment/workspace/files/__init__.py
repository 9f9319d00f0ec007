"""The files of a workspace: transfer, snapshots and changes."""
