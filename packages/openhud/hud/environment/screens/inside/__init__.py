"""OpenHUD's programs inside the sandbox."""
