"""Several labels an image: whether it shows each of the classes."""
