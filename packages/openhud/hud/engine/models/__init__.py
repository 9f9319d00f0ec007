"""Files of model folders: how they are written, and which contents they hold."""
