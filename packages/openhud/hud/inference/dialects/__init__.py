"""One codec for each provider dialect, without I/O: `codec` has the interface.

messages, request, events           the common representation, with `hud.trace`
<dialect>/codec                     the dialect's class: settings, requests read and written
<dialect>/conversation, tools       messages and tool declarations, both directions
<dialect>/answer, stream            answers whole and streamed, both directions; finish reasons, usage, errors
"""
