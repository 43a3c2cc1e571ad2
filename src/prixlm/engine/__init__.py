"""Where work runs (this process, several, or Ray), and the folders it is resumed in."""
