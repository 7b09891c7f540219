"""Classification: one label for each image."""
