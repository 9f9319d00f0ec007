"""The gateway: every model of a team, in the dialects that clients speak.

    client ── dialect ── neutral request and events ──┬── local: text and tokens of this server's engine
                                                      └── upstream: another provider's dialect
    client ── pass-through, byte for byte ─────────────── a provider, asked in its own dialect

`requests` and `events` are what the rooms here say to one another. A dialect knows its wire and nothing of models;
`local` knows tokens and nothing of any wire.
"""
