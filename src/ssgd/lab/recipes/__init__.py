"""From words on a command line, or your own model and images, to a recipe."""
