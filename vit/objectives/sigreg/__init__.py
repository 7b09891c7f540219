"""LeJEPA: features that views of an image have in common, and that are normally distributed; without labels."""
