"""The `hud` command: one small module for each subcommand, loaded when it is called."""
