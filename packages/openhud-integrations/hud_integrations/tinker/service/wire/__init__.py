"""Bodies of Tinker's API: JSON requests, and protocol buffers of data, passes and samples."""
