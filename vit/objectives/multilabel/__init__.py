"""Several labels per image: whether it shows each of the classes."""
