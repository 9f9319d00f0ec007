"""Gateway: every model of a team, in the API dialects of common clients.

    client ── codec ── request and events ──┬── local: text and tokens of this server's engine
                                            └── upstream: codec of the provider's dialect ── provider
    client ── pass-through, byte for byte ───── a provider of the client's own dialect

The codecs are `hud.inference.dialects`, which agents use too. A codec depends on its wire format, not on models;
`local` works on tokens and is independent of wire formats.
"""
