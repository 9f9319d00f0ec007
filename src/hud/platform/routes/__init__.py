"""The routes of the platform, one module for each subject."""
