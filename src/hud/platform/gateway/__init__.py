"""The gateway: every model of a team, in the dialects that clients speak.

    client ── codec ── request and events ──┬── local: text and tokens of this server's engine
                                            └── upstream: codec of the provider's dialect ── provider
    client ── pass-through, byte for byte ───── a provider of the client's own dialect

The codecs are `hud.inference.dialects`, which agents use too. A codec knows its wire and nothing of models; `local`
knows tokens and nothing of any wire.
"""
