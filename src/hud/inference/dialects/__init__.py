"""Provider dialects: conversations to requests, answers to turns."""
