"""The dialects that clients speak, one file each: how a request reads, and how events are told."""
