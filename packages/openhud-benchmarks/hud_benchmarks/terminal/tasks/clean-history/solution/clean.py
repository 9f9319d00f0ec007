"""Replaces the token in the blobs of a fast-export stream, and corrects their lengths."""

import re
import sys

stream, cleaned = sys.stdin.buffer.read(), b""
while stream:
    line, _, stream = stream.partition(b"\n")
    if line.startswith(b"data "):
        length = int(line[5:])
        data, stream = stream[:length], stream[length:]
        data = re.sub(rb"tk_live_[0-9a-f]+", b"REMOVED", data)
        cleaned += b"data %d\n" % len(data) + data
    else:
        cleaned += line + b"\n"
sys.stdout.buffer.write(cleaned)
